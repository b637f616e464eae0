"""Drafter `draft_model`: the cache it keeps, the law it records, and what happens when its model misbehaves."""

import dataclasses
import math
import warnings

import pytest
import torch

from slipstream.drafters.draft_model import DraftModel, DraftModelOptions
from slipstream.sampling import RequestRngs
from slipstream.testing import RandomLaw, distance, make_round, plain_law, run_law
from slipstream.testing.toy_decoder import ToyDecoder, hashed_logits
from slipstream.types import Draw, RequestError, SamplingParams, Sequence, WorkError
from slipstream.verify import RULES

VOCAB = 13
LOGITS = hashed_logits(VOCAB)


def row_of(tokens, *, row_id=0, eos=(), **params):
    return Sequence(row_id, list(tokens), len(tokens), SamplingParams(**params), seed=77 + row_id, eos_ids=eos)


def model(logits=LOGITS, *, vocab=VOCAB, width=None, max_rows=4, max_len=4096, **options):
    decoder = ToyDecoder(logits, vocab=width or vocab, max_len=max_len)
    return DraftModel(decoder, vocab=vocab, max_rows=max_rows, options=DraftModelOptions(**options)), decoder


def propose(drafter, rows, *budget):
    return drafter.propose(rows, list(budget), RequestRngs(rows))


def grow(row, *tokens):
    row.tokens.extend(tokens)
    row.rounds += 1


def greedy_text(prefix, n, logits=LOGITS):
    text = list(prefix)
    for _ in range(n):
        text.append(int(logits(text).argmax()))
    return text[len(prefix) :]


class TestCache:
    def test_feeds_the_prompt_once_and_one_token_per_depth(self):
        drafter, decoder = model()
        row = row_of([1, 2, 3])
        draft = propose(drafter, [row], 4)
        assert draft.tokens[0].tolist() == [3, *greedy_text([1, 2, 3], 4)]
        assert decoder.fed == 3 + 3, "the last drafted token is never fed"

    @pytest.mark.parametrize("accepted", range(5))
    def test_every_accept_length_leaves_the_cache_right(self, accepted):
        drafter, decoder = model()
        row = row_of([1, 2, 3])
        for _ in range(6):
            guesses = propose(drafter, [row], 4).tokens[0, 1:].tolist()
            assert guesses == greedy_text(row.tokens, 4)
            before = decoder.fed
            correction = (guesses[accepted] + 1) % VOCAB if accepted < 4 else 5
            grow(row, *guesses[:accepted], correction)
            propose(drafter, [row], 1)
            assert decoder.slots[0] == row.tokens, "what is kept is the committed text"
            assert decoder.fed - before == (2 if accepted == 4 else 1), "nothing is fed twice"

    def test_copy_of_the_target_is_always_right(self):
        drafter, decoder = model()
        row = row_of([4, 4])
        drafted = right = 0
        for _ in range(50):
            guesses = propose(drafter, [row], 4).tokens[0, 1:].tolist()
            truth = greedy_text(row.tokens, 5)
            drafted, right = drafted + 4, right + sum(g == t for g, t in zip(guesses, truth, strict=False))
            grow(row, *truth)
            assert decoder.length(0) < len(row.tokens)
        assert right == drafted == 200

    def test_ragged_gaps_are_fed_in_one_batch(self):
        drafter, decoder = model()
        rows = [row_of([1, 2, 3], row_id=0), row_of([5, 6], row_id=1), row_of([7] * 30, row_id=2)]
        propose(drafter, rows, 2, 2, 2)
        grow(rows[0], *greedy_text(rows[0].tokens, 3))
        grow(rows[1], 9)
        grow(rows[2], *[1] * 12)
        passes = decoder.passes
        draft = propose(drafter, rows, 1, 1, 1)
        assert decoder.passes - passes == 2, "one prefill for the long gap, one batch for all"
        assert draft.tokens[:, 1].tolist() == [greedy_text(r.tokens, 1)[0] for r in rows]

    @pytest.mark.parametrize("size", [1, 5, 9, 30])
    def test_a_token_is_read_as_prompt_or_decoded_whenever_it_is_fed(self, size):
        drafter, decoder = model()
        decoder.max_nodes = 4  # so that gaps of both kinds are fed by `extend`
        drafter = DraftModel(decoder, vocab=VOCAB, max_rows=4)
        read: list[tuple[int, int, bool]] = []
        extend = decoder.extend

        def note(slot, tokens, *, prompt=True):
            read.append((decoder.length(slot), decoder.length(slot) + len(tokens), prompt))
            return extend(slot, tokens, prompt=prompt)

        decoder.extend = note
        row = row_of(range(1, 12))
        for start in range(0, 10, size):
            drafter.observe([row], [row.tokens[start : min(start + size, 10)]], [{}])
        grow(row, *[3] * 20)
        propose(drafter, [row], 1)
        assert decoder.slots[0] == row.tokens
        assert max(end for _, end, prompt in read if prompt) == 10, "all of the prompt but its last token"
        assert min(start for start, _, prompt in read if not prompt) == 10

    def test_a_round_may_be_proposed_again(self):
        drafter, _ = model()
        row = row_of([1, 2, 3], temperature=1.0)
        first, again = propose(drafter, [row], 4), propose(drafter, [row], 4)
        assert torch.equal(first.tokens, again.tokens)
        assert torch.equal(first.q, again.q)

    def test_rounds_without_a_budget_feed_nothing_until_one_comes(self):
        drafter, decoder = model()
        row = row_of([1, 2, 3])
        for token in range(12):
            assert propose(drafter, [row], 0).nodes == 1
            grow(row, token)
        assert decoder.fed == 0
        assert propose(drafter, [row], 2).tokens[0, 1:].tolist() == greedy_text(row.tokens, 2)

    @pytest.mark.parametrize("accepted", range(5))
    def test_rejected_guesses_are_dropped_even_when_noticed_rounds_later(self, accepted):
        drafter, decoder = model()
        row = row_of([1, 2, 3])
        guesses = propose(drafter, [row], 4).tokens[0, 1:].tolist()
        for tokens in ([*guesses[:accepted], 0], [5], [6, 7]):
            grow(row, *tokens)
            assert propose(drafter, [row], 0).nodes == 1
        assert propose(drafter, [row], 1).tokens[0, 1:].tolist() == greedy_text(row.tokens, 1)
        assert decoder.slots[0] == row.tokens

    def test_what_was_fed_when_the_logits_broke_is_fed_again(self):
        broken = True
        drafter, decoder = model(lambda prefix: LOGITS(prefix) * (math.nan if broken else 1.0))
        row = row_of([1, 2, 3])
        with pytest.warns(RuntimeWarning):
            assert propose(drafter, [row], 3).nodes == 1
        broken, before = False, decoder.fed
        grow(row, 8)
        assert propose(drafter, [row], 1).nodes == 2
        assert decoder.fed - before == 2, "the root of the broken round, and the new one"

    def test_a_failing_forward_leaves_the_next_round_right(self):
        drafter, decoder = model()
        row = row_of([1, 2, 3])
        propose(drafter, [row], 3)
        grow(row, *greedy_text(row.tokens, 2), 11)
        for broken in ("nodes", "keep"):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(decoder, broken, lambda *_: (_ for _ in ()).throw(WorkError("out of memory")))
                with pytest.raises(WorkError):
                    propose(drafter, [row], 3)
        assert propose(drafter, [row], 3).tokens[0, 1:].tolist() == greedy_text(row.tokens, 3)

    def test_slots_are_reused_after_forget_and_never_shared(self):
        drafter, decoder = model(max_rows=2)
        a, b, c = (row_of([i, i + 1], row_id=i) for i in range(3))
        propose(drafter, [a, b], 2, 2)
        with pytest.raises(WorkError, match="has 2 rows"):
            propose(drafter, [a, b, c], 2, 2, 2)
        drafter.forget(a)
        drafter.forget(a)
        assert propose(drafter, [c, b], 2, 2).tokens[:, 1:].tolist() == [greedy_text(r.tokens, 2) for r in (c, b)]
        drafter.forget(b)
        drafter.forget(c)
        assert decoder.slots == {}

    def test_drafts_stop_where_the_models_context_ends(self):
        drafter, _ = model(max_len=6)
        row = row_of([1, 2, 3, 4])
        lengths = []
        for token in range(4):
            lengths.append(propose(drafter, [row], 5).nodes - 1)
            grow(row, token)
        assert lengths == [2, 1, 0, 0]

    @pytest.mark.parametrize("pieces", [(7, 293), (3, 5, 100, 192), (300,), (4,)])
    def test_a_prompt_may_come_in_pieces_of_any_size(self, pieces):
        """A row that joins others is read by what they leave of a pass: how little that is must not show later."""
        drafter, decoder = model()
        row = row_of([k % VOCAB for k in range(sum(pieces) + 1)])
        row.prompt_len, at = len(row.tokens), 0
        for size in pieces:
            drafter.observe([row], [row.tokens[at : at + size]], [{}])
            at += size
            assert decoder.fed == at
        assert drafter.unread(row) == 0

    def test_a_prompt_beyond_the_models_context_is_not_read(self):
        drafter, decoder = model(max_len=200)
        row = row_of([k % VOCAB for k in range(300)])
        row.prompt_len = 300
        drafter.observe([row], [row.tokens[:150]], [{}])
        assert decoder.fed == drafter.room(row) == 0


class TestLaw:
    def test_greedy_rows_are_fixed_without_q(self):
        drafter, _ = model()
        draft = propose(drafter, [row_of([1]), row_of([2], row_id=1)], 3, 2)
        assert draft.q is None
        assert draft.draw.tolist() == [[Draw.FIXED] * 4] * 2
        assert draft.length.tolist() == [4, 3]

    @pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
    def test_q_is_the_law_of_each_node_under_the_rows_temperature(self, temperature):
        drafter, _ = model()
        row = row_of([1, 2], temperature=temperature)
        draft = propose(drafter, [row], 3)
        assert draft.q.shape == (1, 4, VOCAB)
        assert draft.q.dtype == torch.float32
        text = list(row.tokens)
        for node in range(3):
            right = torch.softmax(LOGITS(text) / temperature, -1)
            assert torch.allclose(draft.q[0, node], right, atol=1e-6)
            text.append(int(draft.tokens[0, node + 1]))
        assert draft.draw.tolist() == [[Draw.FIXED] + [Draw.SAMPLED] * 3]

    @pytest.mark.parametrize("rule", ["chain", "block", "coupled"])
    @pytest.mark.parametrize("options", [{}, {"min_prob": 0.4}], ids=["full", "early stop"])
    def test_what_is_emitted_has_exactly_the_targets_law(self, rule, options):
        p, q = RandomLaw(3, seed=1), hashed_logits(3, seed=2, dtype=torch.float64)
        drafter, _ = model(q, vocab=3, max_rows=32, **options)
        emitted = run_law(make_round(p, drafter, RULES[rule], 2), (1,), 4)
        assert distance(emitted, plain_law(p, (1,), 4)) < 1e-12

    def test_that_check_catches_a_token_withdrawn_for_being_unlikely(self):
        class Withdrawing(DraftModel):
            def propose(self, rows, budget, rngs):
                draft = super().propose(rows, budget, rngs)
                chances = draft.q[:, :-1].gather(2, draft.tokens[:, 1:, None])[:, :, 0]  # [B, N - 1]
                kept = (chances >= 0.4).long().cumprod(1).sum(1)
                return dataclasses.replace(draft, length=1 + kept)

        p = RandomLaw(3, seed=1)
        decoder = ToyDecoder(hashed_logits(3, seed=2, dtype=torch.float64), vocab=3)
        drafter = Withdrawing(decoder, vocab=3, max_rows=32)
        assert distance(run_law(make_round(p, drafter, RULES["chain"], 2), (1,), 4), plain_law(p, (1,), 4)) > 0.01

    def test_mixed_batch_marks_each_row(self):
        drafter, _ = model()
        draft = propose(drafter, [row_of([1]), row_of([2], row_id=1, temperature=1.0)], 2, 2)
        assert draft.draw.tolist() == [[0, 0, 0], [0, 1, 1]]
        assert draft.tokens[0].tolist() == [1, *greedy_text([1], 2)]

    def test_a_sampled_row_without_a_draft_has_no_drawn_nodes(self):
        drafter, _ = model()
        draft = propose(drafter, [row_of([1]), row_of([2], row_id=1, temperature=1.0)], 2, 0)
        assert draft.q is None
        assert draft.draw.tolist() == [[Draw.FIXED] * 3] * 2

    def test_processors_see_the_prefix_of_each_node(self):
        seen = []

        def record(prefix, row):
            seen.append(list(prefix))
            return row

        drafter, _ = model()
        for temperature in (0.0, 1.0):
            row = row_of([1, 2], temperature=temperature, logits_processors=(record,))
            seen.clear()
            guesses = propose(drafter, [row], 3).tokens[0, 1:].tolist()
            drafter.forget(row)
            assert seen == [[1, 2] + guesses[:n] for n in range(3)]

    def test_greedy_under_a_penalty_drafts_what_the_penalty_leaves(self):
        def logits(prefix):
            return torch.tensor([2.0, 1.9, 1.8])

        drafter, _ = model(logits, vocab=3)
        row = row_of([2], repetition_penalty=1.5)
        assert propose(drafter, [row], 2).tokens[0, 1:].tolist() == [0, 1]

    @pytest.mark.parametrize("width", [9, 13, 16])
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_other_vocabulary_widths_are_cut_or_padded(self, width, temperature):
        def logits(prefix):
            high = torch.zeros(width)
            high[10:] = 9.0  # padding columns of the draft model
            return high

        drafter, decoder = model(logits, vocab=10, width=width)
        row = row_of([1, 9], temperature=temperature)
        for _ in range(20):
            draft = propose(drafter, [row], 4)
            assert int(draft.tokens.max()) < min(10, max(width, 10))
            if temperature:
                assert draft.q.shape[-1] == 10
                assert torch.allclose(draft.q[0, :4].sum(-1), torch.ones(4))
                assert float(draft.q[..., width:].sum()) == 0.0
            grow(row, 9)
        assert max(decoder.slots[0]) < width

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_a_head_of_fewer_ids_than_it_is_fed(self, temperature):
        decoder = ToyDecoder(lambda prefix: LOGITS(prefix)[:7], vocab=VOCAB)
        decoder.config = dataclasses.replace(decoder.config, vocab=7)
        decoder._check = lambda slot, tokens: None
        drafter = DraftModel(decoder, vocab=VOCAB, max_rows=1, ids=VOCAB)
        row = row_of([1, 12, 9], temperature=temperature, top_k=3 if temperature else 0)
        for _ in range(20):
            draft = propose(drafter, [row], 3)
            text = [*row.tokens, *draft.tokens[0, 1:].tolist()]
            for node in range(3):
                logits = LOGITS(text[: len(row.tokens) + node])[:7]
                if not temperature:
                    assert text[len(row.tokens) + node] == int(logits.argmax())
                    continue
                q = torch.softmax(logits.masked_fill(logits < logits.topk(3).values[-1], -torch.inf), -1)
                assert torch.allclose(draft.q[0, node, :7], q, atol=1e-6)
                assert draft.q[0, node].shape == (VOCAB,)
                assert float(draft.q[0, node, 7:].abs().sum()) == 0.0
            grow(row, 12, 8)
        assert decoder.slots[0][: len(row.tokens) - 3] == row.tokens[:-3], "what it cannot draft it is fed all the same"


class TestEarlyStop:
    def test_the_unlikely_token_is_kept_and_ends_the_draft(self):
        drafter, _ = model(min_prob=0.35)
        rows = [row_of([i, 3], row_id=i, temperature=float(i % 2)) for i in range(4)]
        shorter = 0
        for _ in range(40):
            draft = propose(drafter, rows, 5, 5, 5, 5)
            for b, row in enumerate(rows):
                length = int(draft.length[b])
                guesses = draft.tokens[b, 1:length].tolist()
                text, probs = list(row.tokens), []
                for token in guesses:
                    probs.append(float(torch.softmax(LOGITS(text), -1)[token]))
                    text.append(token)
                assert all(p >= 0.35 for p in probs[:-1])
                assert length == 6 or probs[-1] < 0.35
                shorter += length < 6
                grow(row, (guesses[0] + 1) % VOCAB)
        assert shorter > 20

    def test_a_token_that_the_model_rules_out_has_no_chance(self):
        """A processor may let in what the draft model gives no logit: how sure it was is 0 then, not NaN."""
        decoder = ToyDecoder(lambda prefix: LOGITS(prefix).index_fill(0, torch.tensor(5), -torch.inf), vocab=VOCAB)
        drafter = DraftModel(decoder, vocab=VOCAB, max_rows=1)
        heard = []
        drafter.steer(lambda row, sure: heard.append(list(sure)) or True)

        def only_five(_tokens, logits):
            return torch.full_like(logits, -torch.inf).index_fill(0, torch.tensor(5), 1.0)

        row = Sequence(1, [1, 2], 2, SamplingParams(logits_processors=(only_five,)), seed=1)
        assert propose(drafter, [row], 3).tokens[0].tolist() == [2, 5, 5, 5]
        assert heard[-1] == [0.0, 0.0]

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_nothing_is_drafted_after_an_end_of_text_id_unless_it_is_ignored(self, temperature):
        def logits(prefix):
            return torch.tensor([0.0, 50.0, 0.0]) if len(prefix) == 3 else torch.tensor([50.0, 0.0, 0.0])

        ended, whole = [0, 1], [0, 1, 0, 0]
        for ends, right in (
            ({"eos": (1,)}, ended),
            ({"eos": (1,), "ignore_eos": True}, whole),
            ({"stop_token_ids": (1,)}, ended),
            ({}, whole),
        ):
            drafter, _ = model(logits, vocab=3)
            row = row_of([2, 2], temperature=temperature, **ends)
            assert propose(drafter, [row], 4).tokens[0, 1:].tolist() == right

    @pytest.mark.parametrize("value", [-0.1, 1.0, math.nan])
    def test_a_wrong_min_prob_is_refused(self, value):
        with pytest.raises(RequestError, match="min_prob"):
            DraftModelOptions(min_prob=value)


class TestHints:
    """A row that repeats itself is drafted in fewer passes; what is drafted is the same."""

    def test_a_repetition_takes_one_pass_and_a_place_a_token(self):
        drafter, decoder = model()
        row = row_of([1, 2, 3])
        grow(row, *greedy_text(row.tokens, 400))  # long enough to go round in a circle
        propose(drafter, [row], 1)
        for _ in range(4):
            before = decoder.passes
            grow(row, *greedy_text(row.tokens, 1))
            assert propose(drafter, [row], 7).tokens[0, 1:].tolist() == greedy_text(row.tokens, 7)
            assert decoder.passes == before + 1

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_wrong_hints_change_nothing(self, temperature):
        few = hashed_logits(4, seed=3)
        hinted, plain = model(few, vocab=4), model(few, vocab=4)
        plain[0]._hint = lambda work: []
        rows = [row_of([1, 2, 3], temperature=temperature) for _ in range(2)]
        for turn in range(60):
            drafts = [propose(drafter, [row], 5) for (drafter, _), row in zip((hinted, plain), rows, strict=True)]
            assert torch.equal(drafts[0].tokens, drafts[1].tokens)
            assert drafts[0].q is drafts[1].q is None or torch.equal(drafts[0].q, drafts[1].q)
            new = drafts[0].tokens[0, 1 : 1 + turn % 6].tolist()
            for row in rows:
                grow(row, *new, turn * 7 % 4)
        assert hinted[1].fed > plain[1].fed + 10, "some came to nothing"
        assert hinted[1].passes < plain[1].passes

    def test_nothing_is_foreseen_past_the_budget_or_for_two_rows(self):
        drafter, decoder = model()
        row = row_of([1, 2] * 20)
        propose(drafter, [row], 1)
        assert len(decoder.slots[0]) == 40
        other = row_of([1, 2] * 20, row_id=1)
        propose(drafter, [row, other], 3, 3)
        assert len(decoder.slots[1]) == 42, "the last drafted token is never fed"


def test_rows_that_misbehave_do_not_stop_the_others():
    def logits(prefix):
        return LOGITS(prefix) * (math.nan if prefix[0] == 1 and len(prefix) > 2 else 1.0)

    drafter, _ = model(logits)
    rows = [row_of([1, 2], row_id=0), row_of([2, 2], row_id=1), row_of([1, 3, 3], row_id=2)]
    with pytest.warns(RuntimeWarning, match="not finite"):
        draft = propose(drafter, rows, 3, 3, 3)
    assert draft.length.tolist() == [2, 4, 1]
    assert draft.tokens[1, 1:].tolist() == greedy_text([2, 2], 3)
    assert drafter.dropped == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        propose(drafter, rows, 3, 3, 3)
    assert drafter.dropped == 4, "counted each time, told once"
