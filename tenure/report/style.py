"""The style sheet of a report: one column, two palettes, and what changes on paper."""

_DAY = """
--page:#fcfcfb;--ink:#0b0b0b;--soft:#52514e;--line:#e1e0d9;--panel:#f4f3ef;--good:#0a7a0a;--bad:#c22b2b;
--open:#8a6100;--c0:#2a78d6;--c1:#eb6834;--c2:#1baf7a;--c3:#c98a00;--c4:#4a3aa7;--c5:#d1588a;--c6:#008300;
--c7:#a3222f;--cx:#8a8983;color-scheme:light"""
_NIGHT = """
--page:#161615;--ink:#f7f7f5;--soft:#c3c2b7;--line:#3a3936;--panel:#212120;--good:#3fbf3f;--bad:#ef7070;
--open:#e0b040;--c0:#5b9ce8;--c1:#e8804f;--c2:#2fbd8b;--c3:#d9a32b;--c4:#a59cf0;--c5:#e27fa9;--c6:#4fb04f;
--c7:#e66767;--cx:#9a9992;color-scheme:dark"""
_COLOURS = "".join(
    f".c{n}{{fill:var(--c{n})}}.sc{n}{{stroke:var(--c{n})}}" for n in (*range(8), "x")
)

STYLE = f"""
:root{{{_DAY}}}
@media (prefers-color-scheme:dark){{:root{{{_NIGHT}}}}}
*{{box-sizing:border-box}}
body{{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}}
main{{max-width:840px;margin:0 auto;padding:20px 16px 48px}}
h1{{font-size:1.7rem;line-height:1.2;margin:0 0 8px;overflow-wrap:anywhere}}
h2{{font-size:1.2rem;margin:36px 0 8px;border-top:1px solid var(--line);padding-top:16px}}
p,li,figcaption{{overflow-wrap:anywhere}}
.state{{margin:0;padding:8px 12px;border-left:4px solid var(--open);background:var(--panel);font-weight:600}}
.state.good{{border-color:var(--good)}} .state.bad{{border-color:var(--bad)}}
.made,.units,figcaption,small,summary,.tiles dt{{color:var(--soft)}}
.made{{font-size:.85rem;margin:8px 0 0}}
.tiles{{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:8px;margin:20px 0 0}}
.tiles div{{background:var(--panel);border-radius:6px;padding:10px 12px;min-width:0}}
.tiles dt{{font-size:.8rem}} .tiles dd{{margin:0;font-size:1.25rem;font-weight:600;overflow-wrap:anywhere}}
.tiles small{{display:block;font-size:.78rem;font-weight:400}}
figure{{margin:20px 0}} figcaption{{font-size:.9rem;margin-top:6px}}
svg{{display:block;width:100%;height:auto;overflow:hidden;font-family:inherit}} svg.wide{{display:none}}
@media (min-width:700px){{svg.wide{{display:block}} svg.narrow{{display:none}}}}
{_COLOURS}
.label{{fill:var(--ink);font-size:12px}} .tick{{fill:var(--soft);font-size:11px}}
.grid{{stroke:var(--line);stroke-width:1}} .reference{{stroke:var(--ink);stroke-width:1.5;stroke-dasharray:5 4}}
.mean{{stroke:var(--ink);stroke-width:2}} .pale{{opacity:.35}} .dot{{stroke:var(--page);stroke-width:1.2;opacity:.9}}
.lost{{stroke:var(--ink);stroke-width:2;fill:none}} .curve{{fill:none;stroke-width:1.6;opacity:.85}}
.bad-part{{fill:var(--bad)}}
details{{margin-top:6px}} summary{{cursor:pointer;font-size:.9rem;padding:6px 0}}
.table{{overflow-x:auto;max-width:100%}}
table{{border-collapse:collapse;font-size:.85rem;width:100%}}
th,td{{text-align:left;padding:4px 10px 4px 0;border-bottom:1px solid var(--line);vertical-align:top}}
th{{color:var(--soft);font-weight:600}} td.n{{font-variant-numeric:tabular-nums;white-space:nowrap}}
td{{max-width:46ch;overflow-wrap:break-word}} td.t{{min-width:15ch;overflow-wrap:anywhere}}
.PASS{{color:var(--good);font-weight:600}} .BLOCK{{color:var(--bad);font-weight:600}}
.NOT_ENOUGH_SEEDS{{color:var(--open);font-weight:600}}
@media print{{:root{{{_DAY}}} body{{font-size:11pt}} main{{max-width:none;padding:0}}
*{{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
h2,.tiles div,svg,tr{{break-inside:avoid}} h2{{break-after:avoid}} summary{{display:none}}
details::details-content{{content-visibility:visible;display:block;height:auto}}
.table{{overflow:visible}} svg.wide{{display:block}} svg.narrow{{display:none}}}}
"""
