"""What finished work really costs, and what to buy next: pure arithmetic, one module for each kind of question.

Each module has plain functions for whoever steers a pool by them, the scenario that ``tenure capacity`` reads, and
its answer. Sections (11.1.2) and examples (11-1) in docstrings are those of the chapter on planning resources that
the formulas come from; docs/capacity.md has all of them with their numbers, and the tests repeat each.
"""
