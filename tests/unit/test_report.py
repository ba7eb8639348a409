"""The page of a plan: what it says, that it is whole, and that nobody's words become markup."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets import report_command
from assets.plan_facts import PlanFacts, gather
from assets.report_page import compared, page, state_of
from gates.deploy import deploy
from gates.verdict import Verdict
from gates.warrant import make_key
from tenure.discard import Discarder, needed, total
from tenure.dispatch.history import LaunchRow
from tenure.errors import StoreOutOfReach, UsageError
from tenure.plan.enlist import enlist
from tenure.report import drawing
from tenure.report.drawing import Scale, safe, ticks
from tenure.report.figures import Curve, Stack, Strip, Told, curves, predictions, stacks, strips
from tenure.report.page import MOST_ROWS, Figure, Page, Section, Tile, html, table
from tenure.report.progress import Attempt, lost_steps, progress_of, read_attempts
from tenure_protocol.clock import SYSTEM
from tenure_protocol.lease import keys
from tenure_protocol.records import JobSpec, Lifetime
from tenure_protocol.store.directory import DirectoryStore
from tenure_protocol.store.memory import MemoryStore
from tests.browser import browser
from tests.fake_clock import FakeClock
from tests.faulty_store import FaultyStore
from tests.played import DIES_AT, Play
from tests.tenure_command import tenure

EVIL = "</title><script>alert(1)</script><img src=x onerror=alert(2)>\" ' & \u202e\x00"
FIGURES = {"cost-0", "cost-1", "timeline", "quality", "predictions", "seeds-loss", "equity"}


@dataclass(frozen=True)
class Played:
    """A plan in the middle, at its end, and once more after `tenure gc`, which deleted so many files."""

    early: PlanFacts
    facts: PlanFacts
    body: str
    swept: PlanFacts
    files: int
    deployed: str  # the record that was deployed after that


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    with FakeClock() as clock, pytest.MonkeyPatch.context() as patch:
        play = Play(tmp_path_factory.mktemp("plan"), clock, patch)
        play.enlist("training")
        for _ in range(15):
            play.round()
            clock.sleep(2.0)
        early = gather(play.place, "orbit", play.plan, clock)
        play.to("deployment")
        facts = gather(play.place, "orbit", play.plan, clock)
        files = _swept(play, facts)
        swept = gather(play.place, "orbit", play.plan, clock)
        key = make_key(tmp_path_factory.mktemp("keys") / "key.pem")
        record = play.chain().second_generation()
        deployed = deploy(play.store, record, key, "orbit", clock)
        yield Played(early, facts, html(page(facts)), swept, files, deployed.record)


def _swept(play: Play, facts: PlanFacts) -> int:
    kept = needed(play.store, facts.ends)
    discarder = Discarder(play.store, play.clock, "gc", kept)
    done = [discarder.sweep(job, end.experiment) for job, end in facts.ends.items()]
    assert total(done).notes == []
    return total(done).files


class Reader(HTMLParser):
    """What a page has, by tag, and that every tag is closed."""

    def __init__(self, body: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(body)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link"):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def figures_of(body: str) -> dict[str, str]:
    return dict(re.findall(r'<figure id="([^"]+)" class="drawn">(.*?)</figure>', body, re.DOTALL))


# --------------------------------------------------------------------------------- the page


def test_a_finished_plan_is_told_whole(played: Played) -> None:
    facts = played.facts
    assert facts.standing is not None and facts.standing.stage is None and facts.notes == []
    sentence, mood = state_of(facts)
    assert (
        sentence
        == f"Every stage is done: record {facts.standing.finished['deployment'][0]} passed every gate."
    )
    assert mood == "good" and safe(sentence) in played.body
    assert {v.verdict for v in facts.verdicts} == {"PASS"}
    for verdict in facts.verdicts:
        assert safe(verdict.gate) in played.body and safe(verdict.reason) in played.body
    for row in facts.costs:
        assert safe(row.currency) in played.body
    assert set(figures_of(played.body)) == FIGURES


def test_what_is_free_is_drawn_in_hours(played: Played) -> None:
    free = [replace(row, amount=0.0, unfinished=0.0) for row in played.facts.costs]
    body = html(page(replace(played.facts, costs=free)))
    assert "Units: hours of machines, of every attempt." in figures_of(body)["cost-0"]
    assert "Units: usd, of every attempt." in figures_of(played.body)["cost-1"]


def test_every_figure_has_a_caption_units_and_a_table_behind_it(played: Played) -> None:
    for key, body in figures_of(played.body).items():
        (caption,) = re.findall(r"<figcaption>(.*?)</figcaption>", body, re.DOTALL)
        assert re.search(r"Units: \w", caption) and len(caption) > 60, key
        (behind,) = re.findall(r"<details>.*?</details>", body, re.DOTALL)
        assert behind.count("<tr>") >= 2, key
        assert [each.count('<svg class="narrow"') for each in (body,)] == [1], key
        assert body.count("<svg ") == 2 and body.count("aria-label=") == 2, key


def test_the_page_needs_nothing_but_itself(played: Played) -> None:
    tags = Reader(played.body).tags
    assert not {"script", "img", "iframe", "object", "embed", "form", "base"} & {t for t, _ in tags}
    for tag, attributes in tags:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            assert name not in ("src", "action", "data", "xlink:href"), (tag, name)
            if name == "href":
                assert value == "data:,", "an empty icon, so that none is asked for"
    assert "url(" not in played.body and "@import" not in played.body
    assert len(played.body) < 400_000


def test_the_same_facts_give_the_same_bytes(played: Played) -> None:
    assert html(page(played.facts)) == played.body


def test_a_plan_that_runs_says_so(played: Played) -> None:
    sentence, mood = state_of(played.early)
    assert mood == "open" and sentence.startswith(
        "This plan is still running: 6 of 6 jobs are not over"
    )
    body = html(page(played.early))
    assert safe(sentence) in body
    assert (
        "No backtest is finished yet." in body and "No point of the grid is evaluated yet." in body
    )
    assert {"timeline"} <= set(figures_of(body)) <= FIGURES
    assert any("not finished" in note for note in played.early.notes)


def test_a_stage_that_has_not_begun_is_no_end(played: Played) -> None:
    where = played.facts.standing
    assert where is not None
    first = {"training": where.finished["training"]}
    between = replace(played.facts, standing=replace(where, finished=first, stage="metrics"))
    assert state_of(between)[0].startswith("This plan is still running: its stage metrics")
    blocked = replace(
        played.facts, standing=replace(where, finished=first, stage="metrics", blocked="b")
    )
    assert state_of(blocked) == ("The plan ended at metrics: b", "bad")
    against = [*played.facts.verdicts[:-1], Verdict("score", "BLOCK", "0.05 of 0.1")]
    assert state_of(replace(played.facts, verdicts=against))[1] == "bad"


def test_two_plans_side_by_side(played: Played) -> None:
    body = html(compared(played.facts, replace(played.early, name="other")))
    Reader(body)
    assert "orbit against other" in body and "other: still running" in body
    assert set(figures_of(body)) == {"cost-0", "cost-1", "seeds-loss", "equity"}
    assert "orbit: spare" in body and "orbit: retrain of" in body
    assert body.count("<figcaption>") >= 7


def test_what_gc_deletes_is_missed_by_no_gate_and_no_page(played: Played) -> None:
    """Everything is proved again from what is left, and the model is deployed."""
    assert played.files >= 20
    assert played.swept.verdicts == played.facts.verdicts
    assert played.swept.equity == played.facts.equity and played.swept.notes == []
    assert played.swept.progress == played.facts.progress
    assert played.facts.standing is not None
    assert played.deployed == played.facts.standing.finished["deployment"][0]


# -------------------------------------------------------------------------------- the losses


def test_what_the_lost_attempt_had_done_is_counted(played: Played) -> None:
    found = played.facts.progress
    assert found is not None
    assert (found.finished, found.without_loss) == (28, 27)
    assert found.share_without_loss == pytest.approx(27 / 28)
    assert 1 <= found.lost_steps <= DIES_AT - 20, "it went on from its milestone at 20"
    assert (found.attempts, found.restarts) == (29, 1) and found.restart_s >= 20.0
    (delay_s,) = found.delays_s
    assert found.delay_s == delay_s and delay_s > 0
    paid = sum(row.unfinished for row in played.facts.costs if row.by == "plan")
    assert paid > 0, "the machine that died is paid for"


def test_steps_are_lost_once_however_often_a_job_is_lost() -> None:
    one = Attempt(1, 0, 130, 1, 1.0, 100.0, 2.0)
    two = Attempt(2, None, 120, 0, 0.0, 0.0)  # it left events alone
    three = Attempt(3, 100, 200, 2, 1.0, 100.0, 1.0)
    assert lost_steps([one, two, three]) == [(30, 60.0), (20, 0.0), (0, 0.0)]
    assert lost_steps([one]) == [(0, 0.0)] and lost_steps([]) == []


def test_a_delay_counts_from_the_last_sign_of_life() -> None:
    first = LaunchRow(
        "j", 1, "r", "here", "d", 1000.0, "", "lost", "closed", None, None, start_s=50.0
    )
    second = replace(first, launch=2, at_s=1500.0, end="finished", start_s=30.0)
    life = Lifetime("j", 1, "r", "lost", held_s=400.0)
    again = Lifetime("j", 2, "r", "finished", held_s=9.0, load_s=7.0)
    attempts = {"j": [Attempt(1, 0, 10, 2, 6.0, 94.0, 2.0), Attempt(2, 5, 20, 1, 1.0, 99.0)]}
    found = progress_of(attempts, ["j"], {"j": [first, second]}, [life, again])
    saved = replace(first, seen_s=50.0 + 380.0)  # its last milestone, 20 s before its last sign
    whole = [Attempt(1, 0, 10, 2, 6.0, 94.0, 2.0), Attempt(2, 10, 20, 1, 1.0, 99.0)]
    lives = [replace(life, milestones=3), again]
    silent = progress_of({"j": whole}, ["j"], {"j": [saved, second]}, lives)
    assert (silent.lost_steps, silent.lost_s, silent.without_loss) == (0, 20.0, 0)
    yielded = progress_of(
        {"j": whole}, ["j"], {"j": [replace(saved, end="released:10"), second]}, lives
    )
    assert (yielded.lost_s, yielded.without_loss) == (0.0, 1)
    assert found.delays_s == (50.0,) and found.restart_s == 37.0
    assert (found.lost_steps, found.without_loss) == (5, 0)
    assert found.lost_s == 400.0, "it had no milestone, and all that it lived is lost"
    assert found.save_share == pytest.approx(7.0 / 200.0)
    assert found.move_share == pytest.approx(437.0 / (193.0 + 437.0))
    unseen = progress_of(attempts, ["j"], {"j": [first, second]}, [])
    assert unseen.delays_s == () and unseen.delay_s is None
    nothing = progress_of({}, [], {}, [])
    assert (nothing.share_without_loss, nothing.save_share, nothing.move_share) == (None,) * 3


def test_what_an_attempt_left_that_is_no_word_of_it(clock: FakeClock) -> None:
    store = MemoryStore(clock)
    job = "a" * 26
    store.create(f"jobs/{job}/attempts/00001/milestones/5-1/manifest.json", b"{")
    store.create(f"jobs/{job}/attempts/00001/milestones/x-1/manifest.json", b"{")
    store.create(keys.events(job, 1, 1), b'{"step": 3}\n')
    store.create(keys.events(job, 2, 1), b'{"step": true}\nno json\n[]\n{"step": -4}\n')
    store.create(f"jobs/{job}/attempts/last/events/000001.jsonl", b'{"step": 9}\n')
    found, troubles = read_attempts(store, job)
    assert [(each.number, each.reached, each.began_at) for each in found] == [
        (1, 5, None),
        (2, 0, None),
    ]
    assert len(troubles) == 1 and "5-1/manifest.json" in troubles[0]


# ------------------------------------------------------------------------------- hostile words


def hostile(words: str) -> Page:
    stack, strip = (
        Stack(words, (("c0", words, 1.0),)),
        Strip(words, words, ((1.0, words), (2.0, words))),
    )
    curve = Curve(words, words, (0.0, 1.0), (1.0, 2.0))
    told = Told(words, 1.0, 2.0, 3.0, 2.5)
    rows = [{words: words, "n": 1.0}]
    figures = [
        Figure(words, words, words, lambda w: stacks([stack], words, w), rows),
        Figure("b", words, words, lambda w: strips([strip, strip], words, w, 1.5), rows),
        Figure("c", words, words, lambda w: curves([curve], words, words, w), rows),
        Figure("d", words, words, lambda w: predictions([told], words, w), rows),
    ]
    section = Section(words, [words], figures, {words: rows})
    return Page(words, words, "open", [Tile(words, words, words)], [section], [words], words)


PLAIN = [tag for tag, _ in Reader(html(hostile("plain"))).tags]


@settings(max_examples=40)
@given(st.one_of(st.just(EVIL), st.text(max_size=40), st.text("<>&\"'/=; \n-!x\\", max_size=40)))
def test_no_word_of_anybody_is_markup(words: str) -> None:
    words = words or "-"
    body = html(hostile(words))
    reader = Reader(body)
    assert [tag for tag, _ in reader.tags] == PLAIN
    assert all(set(a) <= _ATTRIBUTES for _, a in reader.tags)
    assert body.encode()


_ATTRIBUTES = {
    "lang", "charset", "name", "content", "rel", "href", "class", "role", "aria-label", "viewbox", "x", "y",
    "x1", "x2", "y1", "y2", "cx", "cy", "r", "rx", "d", "width", "height", "text-anchor", "id", "scope",
    "tabindex",
}  # fmt: skip


def test_a_hostile_plan_injects_nothing(played: Played) -> None:
    """Its name, a metric, a reason, a card, a team, a currency: whatever somebody may write."""
    facts = played.facts
    spec = next(iter(facts.specs.values()))
    worst = replace(
        facts,
        name=EVIL,
        verdicts=[Verdict("score", "BLOCK", EVIL)],
        reasons=dict.fromkeys(facts.ends, EVIL),
        ends={job: replace(end, finished=False) for job, end in facts.ends.items()},
        specs=dict.fromkeys(facts.specs, replace(spec, config={EVIL: EVIL})),
        costs=[replace(row, name=EVIL, currency=EVIL) for row in facts.costs],
        launches={
            job: [replace(row, rung=EVIL, reason=EVIL, bill_reason=EVIL) for row in rows]
            for job, rows in facts.launches.items()
        },
        equity=[replace(each, name=EVIL, group=EVIL) for each in facts.equity],
        notes=[EVIL],
    )
    for body in (html(page(worst)), html(compared(worst, facts))):
        reader = Reader(body)
        assert reader.count("script") == reader.count("img") == 0
        assert all(set(a) <= _ATTRIBUTES for _, a in reader.tags)
        assert "\u202e" not in body and "\x00" not in body


# --------------------------------------------------------------------------------- the drawing


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9), st.integers(2, 9))
def test_ticks_hold_both_ends_and_are_few(low: float, span: float, most: int) -> None:
    found = ticks(low, low + span, most)
    assert found == sorted(found) and 2 <= len(found) <= most + 3
    slack = 1e-6 * max(abs(low), span)
    assert found[0] <= low + slack and found[-1] >= low + span - slack


@given(st.floats(1e-3, 1e6), st.floats(1.0, 1e6), st.booleans())
def test_a_scale_stays_on_the_paper(low: float, factor: float, log: bool) -> None:
    scale = Scale(low, low * factor, 10.0, 300.0, log)
    assert 10.0 <= scale(low) <= scale(low * factor) <= 300.0
    assert scale(low / 1e9) == 10.0 or not log
    assert scale(low * factor * 1e9) == pytest.approx(300.0)


@pytest.mark.parametrize("width", [340.0, 760.0])
def test_nothing_is_drawn_beside_the_paper(played: Played, width: float) -> None:
    for each in page(played.facts).sections:
        for figure in each.figures:
            drawn = figure.draw(width)
            svg = drawn.svg("a", "wide")
            xs = [float(x) for x in re.findall(r' (?:x|x1|x2|cx)="([-\d.]+)"', svg)]
            ys = [float(y) for y in re.findall(r' (?:y|y1|y2|cy)="([-\d.]+)"', svg)]
            assert min(xs) >= 0 and max(xs) <= width, figure.key
            assert min(ys) >= 0 and max(ys) <= drawn.height, figure.key


def test_a_table_has_an_end() -> None:
    body = table([{"n": n} for n in range(MOST_ROWS + 7)])
    assert body.count("<tr>") == MOST_ROWS + 1 and "7 more rows are left out" in body


# -------------------------------------------------------------------------------- the command


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DirectoryStore:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tenure.cli.group.CORE", _with_report())
    store = DirectoryStore(tmp_path / ".tenure" / "store")
    for plan in ("first", "second"):
        spec = JobSpec(plan, "train", "training", "m:C", {}, 1, 1, "c", "d", 10)
        enlist(store, plan, plan, [spec], {"rungs": ["local"]}, SYSTEM)
    return store


def _with_report() -> dict[str, str]:
    from tenure.cli.group import CORE

    return {**CORE, "report": "assets.report_command:report"}


def test_the_command_writes_one_file(shop: DirectoryStore, tmp_path: Path) -> None:
    ended = tenure("report", "first")
    assert ended.code == 0 and ended.out.startswith("first-report.html: This plan is still running")
    body = (tmp_path / "first-report.html").read_text()
    assert "still running: 1 of 1 jobs" in body and Reader(body).count("h1") == 1
    assert "no plan file" in ended.err and safe("no plan file of [plans] paths") in body
    assert tenure("report", "--compare", "first", "second", "--out", "deep/er/both.html").code == 0
    assert "first against second" in (tmp_path / "deep/er/both.html").read_text()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "name one plan, or two"),
        (("first", "--compare", "first", "second"), "name one plan, or two"),
        (("frist",), "did you mean 'first'"),
        (("nowhere.yaml",), "nowhere.yaml"),
        (("first", "--out", "/proc/nowhere/x.html"), "cannot be written"),
    ],
)
def test_bad_input_is_a_sentence(shop: DirectoryStore, args: Sequence[str], words: str) -> None:
    ended = tenure("report", *args)
    assert ended.code == UsageError.exit_code and words in ended.err
    assert "Traceback" not in ended.err


def test_a_silent_store_is_out_of_reach(played: Played, tmp_path: Path, clock: FakeClock) -> None:
    play = Play(tmp_path, clock, pytest.MonkeyPatch())
    store = FaultyStore(clock)
    store.silent = lambda _: True
    place = replace(play.place, store=store)
    with pytest.raises(StoreOutOfReach):
        gather(place, "orbit", play.plan, clock)
    with pytest.raises(StoreOutOfReach):
        report_command._facts(place, "orbit")


# -------------------------------------------------------------------------------- the browser


def test_a_browser_shows_it_without_a_word(played: Played, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(played.body)
    with browser(tmp_path) as window:
        for width in (390, 1280):
            window.wide(width, 1000)
            window.show(file.as_uri())
            wide, room = window.run(_WIDTHS)  # type: ignore[misc]
            assert wide <= room == width
            keys_of = window.run(_VISIBLE)
            assert keys_of == [True] * len(FIGURES), (
                "of each figure one drawing is seen, in its place"
            )
            window.run("document.querySelectorAll('details').forEach(d => d.open = true)")
            wide, room = window.run(_WIDTHS)  # type: ignore[misc]
            assert wide <= room, "a table that is wider scrolls by itself"
        assert window.said() == []
        assert window.printed().startswith(b"%PDF")


_WIDTHS = "return [document.scrollingElement.scrollWidth, innerWidth]"
#: Of each figure: one drawing is shown, within the page, above a caption, and its table opens.
_VISIBLE = """
return [...document.querySelectorAll('figure.drawn')].map(figure => {
  const shown = [...figure.querySelectorAll('svg')].map(s => s.getBoundingClientRect()).filter(r => r.width > 0);
  const caption = figure.querySelector('figcaption').getBoundingClientRect();
  const rows = figure.querySelectorAll('details tbody tr').length;
  const words = [...figure.querySelectorAll('svg text')].map(t => t.getBoundingClientRect()).filter(r => r.width > 0);
  if (!words.length || words.some(r => r.left < shown[0].left - 1 || r.right > shown[0].right + 1)) return false;
  return shown.length === 1 && shown[0].height > 30 && shown[0].left >= 0 && shown[0].right <= innerWidth
    && caption.top >= shown[0].bottom && rows > 0 && figure.querySelector('.units').innerText.length > 7;
})"""


def test_words_are_cut_to_their_room() -> None:
    assert drawing.short("a" * 40, 100.0).endswith("…") and drawing.short("abc", 100.0) == "abc"
