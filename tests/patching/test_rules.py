"""Every rule proves itself by its examples, and a rule that is written wrongly says where."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fluxguard.errors import InputError
from fluxguard.patching import Edit, Example, Rule, load_rules, rewrite
from fluxguard.patching.rules import Words, parse

RULES = load_rules()
EDITS = [(replace(rule, edits=(edit,)), edit, number) for rule in RULES for number, edit in enumerate(rule.edits)]
REWRITES = [
    pytest.param(rule, example, id=f"{rule.id}-{number}-{at}")
    for rule, edit, number in EDITS
    for at, example in enumerate(edit.rewrites)
]
LEFT_ALONE = [
    pytest.param(rule, text, id=f"{rule.id}-{number}-{at}")
    for rule, edit, number in EDITS
    for at, text in enumerate(edit.leaves_alone)
]

GOOD = """
id: some-rule
title: A title
why: Because.
issue: https://example.org/1
severity: high
order: 1
required: true
edits:
  - find: {pattern: old()}
    needs: old
    replace: new()
    rewrites: [{before: old(), after: new()}]
"""


def without_import(text: str) -> str:
    return text.replace("import fluxguard  # fluxguard: import\n", "")


@pytest.mark.parametrize(("rule", "text"), LEFT_ALONE)
def test_what_a_rule_leaves_alone_stays_as_it_is(rule: Rule, text: str) -> None:
    assert rewrite(text, [rule])[0] == text


@pytest.mark.parametrize(("rule", "example"), REWRITES)
def test_a_rule_rewrites_its_examples(rule: Rule, example: Example) -> None:
    changed, sites = rewrite(example.before, [rule])
    assert without_import(changed) == example.after
    assert [site.state for site in sites] == ["new"]


@pytest.mark.parametrize(("rule", "example"), REWRITES)
def test_a_rewritten_example_is_not_rewritten_again(rule: Rule, example: Example) -> None:
    changed, _ = rewrite(example.before, [rule])
    assert rewrite(changed, [rule])[0] == changed


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_patched_line_is_a_call_into_the_guard(rule: Rule) -> None:
    import fluxguard

    names = {text for edit in rule.edits for text in edit.text.split("fluxguard.")[1:]}
    called = {"".join(letter if letter.isidentifier() else " " for letter in text).split()[0] for text in names}
    assert called <= set(fluxguard.__all__)


def test_rules_come_in_their_written_order() -> None:
    assert [rule.order for rule in RULES] == sorted({rule.order for rule in RULES})


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("title: A title", "titel: A title", "title"),
        ("severity: high", "severity: hihg", "severity"),
        ("order: 1", "order: first", "order"),
        ("required: true", "required: maybe", "required"),
        ("needs: old", "need: old", "edits.0.needs"),
        ("replace: new()", "replaces: new()", "edits.0"),
        ("replace: new()", "replace: new()\n    callee: new", "edits.0"),
        ("replace: new()", "replace: new()\n    colour: red", "edits.0.colour"),
        ("rewrites: [{before: old(), after: new()}]", "rewrites: []", "edits.0.rewrites"),
        ("rewrites: [{before: old(), after: new()}]", "rewrites: [{before: old()}]", "edits.0.rewrites"),
        ("replace: new()", 'before: "a()\\nb()"', "edits.0.before"),
        ("id: some-rule", "id: Some Rule", "id"),
        ("required: true", "required: true\ncolour: red", "colour"),
        ("required: true", "required: true\ncheckout: elsewhere", "checkout"),
    ],
)
def test_a_wrong_rule_names_its_field(old: str, new: str, field: str) -> None:
    with pytest.raises(InputError) as raised:
        parse(GOOD.replace(old, new), "some-rule.yaml")
    assert raised.value.field == field
    assert raised.value.source == "some-rule.yaml"


def test_a_rule_is_named_as_its_file() -> None:
    assert parse(GOOD, "some-rule.yaml").id == "some-rule"
    with pytest.raises(InputError, match="name of the file"):
        parse(GOOD, "other.yaml")


def test_a_file_that_is_not_yaml_is_named() -> None:
    with pytest.raises(InputError, match=r"some-rule\.yaml: is not YAML"):
        parse("a: [", "some-rule.yaml")


def test_within_is_a_function_at_any_depth() -> None:
    edit = Edit(find=parse(GOOD, "some-rule.yaml").edits[0].find, needs="old", action="replace", text="new()")
    assert edit.find == {"pattern": "old()"}
    nested = parse(GOOD.replace("{pattern: old()}", "{pattern: old(), within: [f, g]}"), "some-rule.yaml")
    text = "def f():\n    def inner():\n        old()\nold()\n"
    changed, sites = rewrite(text, [nested])
    assert [site.line for site in sites] == [3]
    assert "        new()  # fluxguard: some-rule\nold()\n" in changed


def test_one_of_several_literals_will_do() -> None:
    [edit] = parse(GOOD.replace("needs: old", "needs: [old(, older(]"), "some-rule.yaml").edits
    assert edit.may_be_in(Words("x = older()"))
    assert edit.may_be_in(Words("x = old()"))
    assert not edit.may_be_in(Words("x = new()"))


def test_a_text_without_the_function_is_not_searched() -> None:
    [edit] = parse(
        GOOD.replace("{pattern: old()}", "{pattern: old(), within: [train, sample]}"), "some-rule.yaml"
    ).edits
    assert edit.may_be_in(Words("def sample(): old()"))
    assert not edit.may_be_in(Words("def load(): old()"))
