"""The record of a generation is that generation: same text, same counts, coins that decide; the page stands alone."""

from __future__ import annotations

import pytest
import torch

from slipstream import LLM, SamplingParams
from slipstream.measure.explain import Coin, Story, explain
from slipstream.measure.explain_page import story_page, visible
from slipstream.measure.explain_rules import coins_of, in_words, summarise
from slipstream.types import Draft
from tiny_model import make_model

PROMPT = "the cat sat on the mat and the <script>cat"
SAMPLED = SamplingParams(temperature=1.0, seed=5, max_tokens=30, ignore_eos=True)
GREEDY = SamplingParams(max_tokens=30, ignore_eos=True)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("other"), seed=1)


def told(tiny, drafter: str, verify: str, params: SamplingParams) -> tuple[LLM, Story]:
    llm = LLM(str(tiny), drafter, dtype="float32", draft_tokens=4, verify=verify, max_rows=1)
    return llm, explain(llm, PROMPT, params)


@pytest.mark.parametrize("params", [SAMPLED, GREEDY], ids=["sampled", "greedy"])
@pytest.mark.parametrize("verify", ["auto", "chain", "block", "tree", "coupled"])
@pytest.mark.parametrize("kind", ["model", "lookup"])
def test_looking_on_changes_nothing_and_counts_agree(tiny, other, kind, verify, params):
    llm, story = told(tiny, str(other) if kind == "model" else "lookup", verify, params)
    done = llm.generate(PROMPT, params)
    assert story.text == done.text
    found = summarise(story)
    assert found.rounds == done.stats["target_passes"]
    assert found.drafted == done.stats["num_draft_tokens"]
    assert story.rounds[-1].kept_so_far == done.stats["num_accepted_tokens"]
    assert found.tokens == 30
    emitted = [t for r in story.rounds for t, _ in r.emitted]
    assert emitted == [llm.tokenizer.decode([t], skip_special=False) for t in done.token_ids]
    assert story_page(story, found).count("<article>") == found.rounds


@pytest.mark.parametrize("verify", ["chain", "tree"])
def test_the_first_coin_that_fails_is_the_refused_node(tiny, other, verify):
    _, story = told(tiny, str(other), verify, SAMPLED)
    assert any(n.state == "refused" for r in story.rounds for n in r.nodes)
    for view in story.rounds:
        assert view.rule == verify
        for node in view.nodes:
            if node.state == "unreached":
                continue
            assert node.coin is not None
            assert node.coin.passed == (node.coin.drawn < node.coin.chance) == (node.state == "kept")
            assert node.coin.chance == pytest.approx(min(1.0, node.p / node.q), rel=1e-3)
            assert 0 < node.overlap <= 1


def test_block_keeps_the_last_level_that_passed(tiny, other):
    _, story = told(tiny, str(other), "block", SAMPLED)
    for view in story.rounds:
        passed = [n.depth for n in view.nodes if n.coin is not None and n.coin.passed]
        assert max(passed, default=0) == view.kept


def test_the_residual_holds_no_mass_at_the_refused_token(tiny, other):
    _, story = told(tiny, str(other), "chain", SAMPLED)
    corrections = [r for r in story.rounds if r.kind == "correction"]
    assert corrections
    for view in corrections:
        refused = next(n for n in view.nodes if n.state == "refused")
        assert [c.share for c in view.choices if c.token == refused.token] == [0.0]
        assert any(c.token == view.own and c.share > 0 for c in view.choices)
        assert all(c.share == pytest.approx(0) or c.p > c.q for c in view.choices)


def test_a_tree_flips_coins_only_where_the_walk_comes_by():
    parents = torch.tensor([[-1, 0, 0, 1, 2, 4]])
    draw = torch.tensor([[0, 0, 1, 0, 1, 0]])  # a fixed node has a coin before a drawn sibling only
    draft = Draft(torch.arange(6)[None], parents, torch.tensor([6]), draw, chain=False)
    coins = [Coin(0.1, 0.5, False), Coin(0.9, 0.5, True), Coin(0.2, 0.5, False)]
    assert coins_of(draft, [2], coins) == {1: coins[0], 2: coins[1], 4: coins[2]}


def test_the_page_explains_escapes_and_needs_nothing_else(tiny, other):
    _, story = told(tiny, str(other), "auto", SAMPLED)
    html = story_page(story, summarise(story))
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "src=" not in html
    assert "@import" not in html
    for word in ("drafter", "target", "what is <b>left</b>", "bonus", "coin", "one pass"):
        assert word in " ".join(html.split())
    assert visible("\n a\x00") == "⏎␣a\\x00"


def test_reasons_name_what_is_wrong(tiny, other):
    _, far = told(tiny, str(other), "auto", SAMPLED)
    assert any("first drafted token already fell" in r for r in summarise(far).reasons)
    _, same = told(tiny, str(tiny), "auto", SAMPLED)
    assert any("knows this text well" in r for r in summarise(same).reasons)
    _, none = told(tiny, "lookup", "auto", SamplingParams(max_tokens=1))
    assert "Nothing was drafted" in summarise(none).reasons[0]


def test_rounds_are_told_in_words(tiny, other):
    _, story = told(tiny, str(other), "chain", SAMPLED)
    words = [in_words(view) for view in story.rounds]
    assert any("the coin showed" in w for w in words)
    assert all(repr(view.own) in w for view, w in zip(story.rounds, words, strict=True))
