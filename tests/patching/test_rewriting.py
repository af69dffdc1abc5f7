"""Rewriting touches its sites and nothing else."""

from __future__ import annotations

import pytest

from fluxguard.patching import Edit, Rule, Unparsable, rewrite
from fluxguard.patching.rewriting import marks

MARK = "  # fluxguard: "
IMPORT = f"import fluxguard{MARK}import\n"


def rule(name: str, find: str, action: str, text: str, needs: str = "") -> Rule:
    edit = Edit(find={"pattern": find}, needs=needs, action=action, text=text)
    return Rule(id=name, title="", why="", issue="", severity="high", order=1, required=False, edits=(edit,))


CALL = rule("call", "old($A)", "replace", "fluxguard.new($A)")
NAME = rule("name", "Loader($$$A)", "callee", "fluxguard.Loader")
BEFORE = rule("before", "begin()", "before", "fluxguard.first()")
AFTER = rule("after", "begin()", "after", "fluxguard.then()")
DECORATE = rule("decorate", "def f(): $$$B", "decorate", "@fluxguard.reads")
ALL = (CALL, NAME, BEFORE, AFTER, DECORATE)


def body(text: str, *rules: Rule) -> str:
    changed, _ = rewrite(text, rules or ALL)
    return changed.replace(IMPORT, "", 1)


def test_a_text_without_a_site_is_returned_as_it_is() -> None:
    text = "x = 1\r\n\tweird ( 'é' )"
    assert rewrite(text, ALL) == (text, ())


def test_a_changed_line_keeps_its_own_comment() -> None:
    assert body("x = old(1)  # why\n") == f"x = fluxguard.new(1)  # why{MARK}call\n"


def test_a_call_over_several_lines_is_marked_where_it_changes() -> None:
    assert body("x = Loader(\n    1,\n)\n") == f"x = fluxguard.Loader({MARK}name\n    1,\n)\n"


def test_captured_text_is_kept_as_it_was_written() -> None:
    keep = rule("keep", "take($$$A)", "replace", "fluxguard.take($$$A)")
    assert body("take(a,b , *c)\n", keep) == f"fluxguard.take(a,b , *c){MARK}keep\n"


def test_two_sites_on_one_line_share_one_mark() -> None:
    assert body("x = old(1), old(2)\n") == f"x = fluxguard.new(1), fluxguard.new(2){MARK}call\n"


def test_two_rules_on_one_line_both_mark_it() -> None:
    assert body("x = old(1), Loader()\n") == f"x = fluxguard.new(1), fluxguard.Loader(){MARK}call{MARK}name\n"


def test_statements_are_inserted_at_the_depth_of_the_site() -> None:
    text = "if x:\n    y = [begin(),\n         1]\n    z = 2\n"
    expected = (
        f"if x:\n    fluxguard.first(){MARK}before\n    y = [begin(),\n         1]\n"
        f"    fluxguard.then(){MARK}after\n    z = 2\n"
    )
    assert body(text) == expected


def test_a_decorator_stands_directly_above_its_function() -> None:
    text = "class C:\n    @staticmethod\n    def f():\n        pass\n"
    assert (
        body(text) == f"class C:\n    @staticmethod\n    @fluxguard.reads{MARK}decorate\n    def f():\n        pass\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        "x = old(1)\nbegin()\nLoader(\n  2)\n",
        "def f():\n    begin()\n    return old(1)\n",
        "@g\ndef f():\n    if a:\n        begin()\n",
        "begin()\nbegin()",
    ],
)
def test_twice_is_the_same_as_once(text: str) -> None:
    once, sites = rewrite(text, ALL)
    assert once != text
    assert rewrite(once, ALL)[0] == once
    assert {site.state for site in sites} == {"new"}
    assert sum(marks(once).values()) > 1


def test_windows_line_breaks_stay_and_are_used() -> None:
    changed, _ = rewrite("x = old(1)\r\nbegin()\r\n", ALL)
    assert changed.count("\r\n") == changed.count("\n") == 5


def test_a_missing_last_line_break_stays_missing() -> None:
    assert body("y = 1\nbegin()", AFTER) == f"y = 1\nbegin()\nfluxguard.then(){MARK}after"


def test_text_that_is_not_ascii_is_counted_rightly() -> None:
    text = "# é 日本語 \U0001f600\nx = '日本', old('ü')  # \U0001f600\n"
    assert body(text) == f"# é 日本語 \U0001f600\nx = '日本', fluxguard.new('ü')  # \U0001f600{MARK}call\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("old(1)\n", IMPORT),
        ("# c\nimport os\nold(1)\n", f"# c\n{IMPORT}import os\n"),
        ('"""Doc."""\nfrom __future__ import a\n\nx = 1\nimport os\nold(1)\n', f"a\n\nx = 1\n{IMPORT}import os\n"),
        ('"""Doc."""\n\nold(1)\nimport os\n', f'"""Doc."""\n\n{IMPORT}'),
        ("from __future__ import annotations; x = 1\nold(1)\n", f"x = 1\n{IMPORT}"),
    ],
    ids=["alone", "above imports", "below the future", "above its first use", "after a semicolon"],
)
def test_the_import_comes_as_early_as_it_may(before: str, after: str) -> None:
    before = before.replace("import a\n", "import annotations\n")
    after = after.replace("a\n\nx", "import annotations\n\nx")
    changed, _ = rewrite(before, [CALL])
    assert after in changed
    compile(changed, "x", "exec")


def test_a_guard_of_somebody_else_counts_and_stays() -> None:
    edit = CALL.edits[0]
    guarded = Edit(find=edit.find, needs="old", action="replace", text=edit.text, guarded={"pattern": "old($A, $B)"})
    known = Rule(id="r", title="", why="", issue="", severity="high", order=1, required=True, edits=(guarded,))
    changed, sites = rewrite("old(1, timeout)\n", [known])
    assert changed == "old(1, timeout)\n"
    assert [site.state for site in sites] == ["theirs"]


def test_a_text_that_is_not_python_is_refused() -> None:
    with pytest.raises(Unparsable, match="line 2"):
        rewrite("old(1)\nx = = 2\n", [CALL])


def failures(text: str, *rules: Rule) -> list[tuple[str, int, str]]:
    """What cannot be changed in a text, which is then as it was."""
    changed, sites = rewrite(text, rules)
    assert changed == text
    return [(site.rule, site.line, site.reason) for site in sites if site.state == "failed"]


@pytest.mark.parametrize("text", ["if x: begin()\n", "x = 1; begin()\n"])
def test_a_site_without_a_line_of_its_own_fails_alone(text: str) -> None:
    assert failures(text, BEFORE) == [("before", 1, "shares its line with another statement")]
    changed, sites = rewrite(f"{text}begin()\n", [BEFORE])
    assert changed == f"{IMPORT}{text}fluxguard.first(){MARK}before\nbegin()\n"
    assert [site.state for site in sites] == ["failed", "new"]


@pytest.mark.parametrize("text", ['x = old(1), """a\nb"""\n', "x = old(1) + \\\n  2\n"])
def test_a_mark_never_lands_in_a_string_or_breaks_a_line(text: str) -> None:
    [(_, _, reason)] = failures(text, CALL)
    assert "a mark has no place" in reason


def test_a_mark_stands_behind_a_string_that_is_part_of_its_site() -> None:
    assert body('x = old("""a\nb""")\n', CALL) == f'x = fluxguard.new("""a\nb"""){MARK}call\n'


def test_an_edit_that_breaks_the_text_fails_and_the_others_stay() -> None:
    bad = rule("bad", "bad($A)", "replace", "fluxguard.new(")
    [(_, _, reason)] = failures("bad(1)\n", bad)
    assert "does not compile" in reason
    changed, sites = rewrite("bad(1)\nold(1)\n", [bad, CALL])
    assert changed == f"{IMPORT}bad(1)\nfluxguard.new(1){MARK}call\n"
    assert [site.state for site in sites] == ["failed", "new"]


def test_sites_within_each_other_compose() -> None:
    assert body("old(old(1))\n") == f"fluxguard.new(fluxguard.new(1)){MARK}call\n"
    assert body("old(Loader(2))\n") == f"fluxguard.new(fluxguard.Loader(2)){MARK}call{MARK}name\n"
    wait = rule("wait", "$F.result()", "replace", "fluxguard.result($F, 'swap')")
    assert body("old(1).result()\n", wait, CALL) == (
        f"fluxguard.result(fluxguard.new(1), 'swap'){MARK}wait{MARK}call\n"
    )


def test_wraps_of_one_node_nest_in_the_order_of_the_rules() -> None:
    inner = rule("inner", "f(1)", "replace", "fluxguard.a(f(1))")
    outer = rule("outer", "f($X)", "replace", "fluxguard.b(f($X))")
    assert body("f(1)\n", inner, outer) == f"fluxguard.b(fluxguard.a(f(1))){MARK}inner{MARK}outer\n"


def test_what_is_added_behind_leaves_the_inside_open_to_others() -> None:
    add = rule("add", "bar(old(1))", "replace", "bar(old(1)), more=1")
    assert body("f(bar(old(1)))\n", add, CALL) == f"f(bar(fluxguard.new(1)), more=1){MARK}add{MARK}call\n"


def test_two_edits_of_the_same_text_overlap_and_the_earlier_rule_wins() -> None:
    one, two = rule("one", "old(1)", "replace", "fluxguard.a()"), rule("two", "old(1)", "replace", "fluxguard.b()")
    changed, sites = rewrite("x = 1\ny = old(1)\n", [one, two])
    assert f"y = fluxguard.a(){MARK}one\n" in changed
    [failed] = [site for site in sites if site.state == "failed"]
    assert (failed.rule, failed.line, failed.reason) == ("two", 2, "overlaps another edit (one and two)")


def test_layout_between_captures_is_kept() -> None:
    pair = rule("pair", "pair($A, $B)", "replace", "fluxguard.pair($A, $B, 3)")
    assert body("x = pair(\n    1,\n    2\n)\n", pair) == (f"x = fluxguard.pair({MARK}pair\n    1,\n    2, 3)\n")


def test_lines_of_several_rules_at_one_statement_come_in_the_order_of_the_rules() -> None:
    rules = [rule(f"{action}-{n}", "begin()", action, f"fluxguard.{action}({n})") for n in (1, 2) for action in
             ("before", "after")]  # fmt: skip
    assert body("begin()\n", *rules) == (
        f"fluxguard.before(1){MARK}before-1\nfluxguard.before(2){MARK}before-2\nbegin()\n"
        f"fluxguard.after(1){MARK}after-1\nfluxguard.after(2){MARK}after-2\n"
    )


def test_lines_after_an_inner_statement_come_before_those_after_an_outer_one() -> None:
    outer = rule("outer", "if x: $$$B", "after", "fluxguard.outer()")
    inner = rule("inner", "begin()", "after", "fluxguard.inner()")
    assert body("if x:\n    begin()\n", outer, inner) == (
        f"if x:\n    begin()\n    fluxguard.inner(){MARK}inner\nfluxguard.outer(){MARK}outer\n"
    )


def test_a_statement_with_two_matches_gets_one_line() -> None:
    assert body("x = begin(), begin()\n", BEFORE) == f"fluxguard.first(){MARK}before\nx = begin(), begin()\n"


def test_decorators_come_in_the_order_of_the_rules() -> None:
    more = rule("more", "def f(): $$$B", "decorate", "@fluxguard.more")
    assert body("def f():\n    pass\n", DECORATE, more) == (
        f"@fluxguard.reads{MARK}decorate\n@fluxguard.more{MARK}more\ndef f():\n    pass\n"
    )


@pytest.mark.parametrize("text", ["f(1)\n", "old(old(1)), f(f(2))\n", "if x:\n    begin(old(1))\nbegin(f(1))\n"])
def test_nested_edits_are_made_once(text: str) -> None:
    wrap = rule("wrap", "f($X)", "replace", "fluxguard.b(f($X))")
    after = rule("after", "begin($X)", "after", "fluxguard.then($X)")
    once, _ = rewrite(text, [CALL, wrap, after])
    assert rewrite(once, [CALL, wrap, after])[0] == once
