"""Logits of our networks against the `speculators` package's own, on files it wrote, to 1e-4 in float32.

Its models only train: they see a whole text at once, we see it in rounds. What corresponds:
- EAGLE-3: its row i pairs token i + 1 with the feature of token i and sits at position i + 1, ours at i: rotary angles
  are relative, so nothing changes. Its step s of row i, fed the text's own tokens, is the s-th drafted token's state
  behind prefix i. Its sliding window does not move on with s, ours does (as engines serve it).
- P-EAGLE: its rollout (a, d) is our mask row of depth d behind row a.
- DFlash, DFlash 2, DSpark: its block at anchor a sees features before a only: our first pass behind a tokens of
  context. Its sliding window is measured from the anchor for all slots of a block, ours from each slot (as engines
  serve it).
"""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch
from safetensors.torch import load_file
from speculators_cases import CASES, LENGTHS, STEPS, V
from speculators_kit import Reference, of_kind, run_side

from slipstream.checkpoints.target_folder import TargetFolder
from slipstream.checkpoints.writing import write_drafter
from slipstream.drafters.dflash import DFlash
from slipstream.drafters.dflash2 import DFlash2
from slipstream.drafters.dspark import DSpark
from slipstream.drafters.eagle3 import Eagle3
from slipstream.drafters.peagle import PEagle
from slipstream.nets.draft_layers import Segment
from slipstream.sampling import RequestRngs
from slipstream.types import SamplingParams, Sequence

TOLERANCE = 1e-4
DRAFTERS = {"eagle3": Eagle3, "peagle": PEagle, "dflash": DFlash, "dflash2": DFlash2, "dspark": DSpark}


@pytest.fixture(scope="module")
def peer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("speculators") / "reference"
    run_side("make", folder)
    return Reference(folder)


def same(ours, theirs, where):
    worst = float((ours - theirs).abs().max())
    assert worst < TOLERANCE, f"{where}: logits differ by {worst:.2g}"


def window_of(case):
    return CASES[case][2].get("sliding_window")


def first_slot(case):
    """The slot of a block that predicts first; the defaults are the package's."""
    return 0 if CASES[case][3].get("sample_from_anchor", CASES[case][0] == "dspark") else 1


class Walk:
    """Texts in rounds, ragged: prompts of different lengths, then rounds that commit different numbers of tokens."""

    def __init__(self, seed, most, last):
        """At most `most` tokens are committed by a round; the text t ends when `last[t]` tokens are."""
        self.rng, self.most, self.last = random.Random(seed), most, last
        self.done = [0] * len(last)

    def rounds(self):
        """Yield {text: (committed before, now)} until all texts are at their end; prompts come in two pieces."""
        yield {t: self._to(t, self.rng.randint(1, 3)) for t in range(len(self.last))}
        while live := [t for t, n in enumerate(self.done) if n < self.last[t]]:
            yield {t: self._to(t, self.rng.randint(1, self.most)) for t in self.rng.sample(live, len(live))}

    def _to(self, text, more):
        start = self.done[text]
        self.done[text] = min(self.last[text], start + more)
        return start, self.done[text]


# --- networks -------------------------------------------------------------------------------------------------------


def feed_rows(net, texts, pieces):
    """Feed rows start..end of each text: token i + 1 beside the feature of i; return each text's last state."""
    segments = [Segment(t, start, range(start, end)) for t, (start, end) in pieces.items()]
    tokens = torch.cat([texts[t].tokens[start + 1 : end + 1] for t, (start, end) in pieces.items()])
    features = net.fuse(joined(texts, pieces))
    states = net.step(tokens, features, segments).split([s.rows for s in segments])
    for t, (_, end) in pieces.items():
        net.layers.keep(t, end)
    return {t: x[-1] for t, x in zip(pieces, states, strict=True)}


def joined(texts, pieces):
    felt = [texts[t].felt(start, end) for t, (start, end) in pieces.items()]
    return {tap: torch.cat([x[tap] for x in felt]) for tap in felt[0]}


def chain_step(net, texts, states, ends, step):
    """Feed drafted tokens, here the text's own, behind each text's rows; return the states, fewer when a text ends."""
    live = [t for t in states if ends[t] + step < len(texts[t])]
    if not live:
        return {}
    tokens = torch.stack([texts[t].tokens[ends[t] + step] for t in live])
    places = [ends[t] + step - 1 for t in live]
    segments = [Segment(t, place, [place]) for t, place in zip(live, places, strict=True)]
    return dict(zip(live, net.step(tokens, torch.stack([states[t] for t in live]), segments), strict=True))


@pytest.mark.parametrize("case", of_kind("eagle3"))
def test_eagle3(peer, case):
    """Context in pieces, then in every round a chain of self-fed states, of which a part is kept; three ragged rows."""
    net, texts, window, compared = peer.net(case), peer.texts, window_of(case), 0
    for pieces in Walk(1, STEPS + 1, [n - 1 for n in LENGTHS]).rounds():
        states, ends = feed_rows(net, texts, pieces), {t: end for t, (_, end) in pieces.items()}
        for step in range(STEPS):
            states = chain_step(net, texts, states, ends, step) if step else states
            for t, state in states.items():
                row = ends[t] - 1
                if step and window and row + step >= window:
                    continue  # its window does not move with the steps
                said = peer.said(case, t)[step, row]
                same(net.logits(state[None])[0], said, f"{case}, text {t}, row {row}, step {step}")
                compared += 1
    assert compared > (20 if window else 50)


@pytest.mark.parametrize("case", of_kind("peagle"))
def test_peagle(peer, case):
    """All depths from one pass of mask rows behind whatever the row has been fed."""
    net, texts = peer.net(case), peer.texts
    for pieces in Walk(2, STEPS + 1, [n - 1 for n in LENGTHS]).rounds():
        states = feed_rows(net, texts, pieces)
        depths = {t: min(STEPS - 1, len(texts[t]) - 1 - end) for t, (_, end) in pieces.items()}
        ahead = [Segment(t, end, range(end, end + depths[t])) for t, (_, end) in pieces.items() if depths[t]]
        count = sum(s.rows for s in ahead)
        masked = torch.empty(0, 0)
        if count:
            masked = net.step(torch.full((count,), net.mask_token), net.mask_feature.expand(count, -1), ahead)
        rest = dict(zip([s.slot for s in ahead], masked.split([s.rows for s in ahead]), strict=True))
        for t, (_, end) in pieces.items():
            ours = net.logits(torch.cat([states[t][None], rest[t]]) if t in rest else states[t][None])
            same(ours, peer.said(case, t)[: len(ours), end - 1], f"{case}, text {t}, row {end - 1}")


def blocks(peer, net, case, seed):
    """Yield (text, anchor, states of its block [S, H]) through ragged rounds, as far as the package has blocks."""
    texts = peer.texts
    for pieces in Walk(seed, net.config.block.size + 1, [len(peer.said(case, t)) for t in range(3)]).rounds():
        segments = [Segment(t, start, range(start, end)) for t, (start, end) in pieces.items()]
        net.context(joined(texts, pieces), segments)
        anchors = {t: end for t, (_, end) in pieces.items()}
        states = net.block(torch.stack([texts[t].tokens[a] for t, a in anchors.items()]), list(anchors))
        yield from ((t, a, x) for (t, a), x in zip(anchors.items(), states, strict=True))


@pytest.mark.parametrize("case", [name for name in of_kind("dflash") if name != "dflash_one_sliding"])
def test_dflash(peer, case):
    """Context in pieces and whole blocks behind it, none of which leaves a trace in the next."""
    net, window, compared = peer.net(case), window_of(case), 0
    for text, anchor, states in blocks(peer, net, case, seed=3):
        if window and anchor + net.config.block.size > window:
            continue  # its window is measured from the anchor: see test_sliding_windows
        same(net.logits(states), peer.said(case, text)[anchor - 1], f"{case}, text {text}, anchor {anchor}")
        compared += 1
    assert compared >= 6


def test_sliding_windows(peer):
    """Its window of w tokens before the ANCHOR is, for slot k, our window of w + k + 1 up to the SLOT.

    Engines serve the latter, with w, and so do we: the difference is the k + 1 oldest tokens of the window.
    """
    case, found = "dflash_one_sliding", peer.read("dflash_one_sliding")
    window, body = window_of(case), found.config.body
    for slot in range(found.config.block.size):
        wider = dataclasses.replace(body, windows=(window + slot + 1,))
        net = peer.net(case, dataclasses.replace(found, config=dataclasses.replace(found.config, body=wider)))
        anchors = []
        for text, anchor, states in blocks(peer, net, case, seed=4):
            ours = net.logits(states[slot][None])[0]
            same(ours, peer.said(case, text)[anchor - 1, slot], f"slot {slot}, text {text}, anchor {anchor}")
            anchors.append(anchor)
        assert max(anchors) > 2 * window


@pytest.mark.parametrize("case", of_kind("dflash2"))
def test_dflash2(peer, case):
    """The logits of whole blocks, and the scores of each slot's likeliest tokens behind the text's own."""
    net, window, compared = peer.net(case), window_of(case), 0
    for text, anchor, states in blocks(peer, net, case, seed=7):
        if window and anchor + net.config.block.size > window:
            continue
        logits, where = net.logits(states), f"{case}, text {text}, anchor {anchor}"
        same(logits, peer.said(case, text, "unary")[anchor - 1], where)
        at = [max(anchor, anchor + slot - first_slot(case)) for slot in range(len(states))]
        top = logits.topk(net.paths.top_k)
        scores = net.scores(net.mixed(states), peer.texts[text].tokens[at], top.indices, top.values)
        ours = torch.full_like(logits, -torch.inf).scatter(1, top.indices, scores)
        theirs = peer.said(case, text)[anchor - 1]
        assert torch.equal(ours.isinf(), theirs.isinf())
        same(ours.nan_to_num(neginf=0), theirs.nan_to_num(neginf=0), f"{where}, scores")
        compared += 1
    assert compared >= 6


@pytest.mark.parametrize("case", of_kind("dspark"))
def test_dspark(peer, case):
    """Corrected logits and confidences, slot after slot, the previous tokens being the text's own.

    Its recurrent head starts at slot 0 also where that slot drafts nothing; the token before slot 0 is then the anchor.
    """
    net = peer.net(case)
    heads = 0
    for text, anchor, states in blocks(peer, net, case, seed=5):
        tokens, base, state = peer.texts[text].tokens, net.logits(states), None
        for slot in range(len(states)):
            previous = tokens[max(anchor, anchor + slot - first_slot(case))][None]
            out = net.correct(states[slot][None], base[slot][None], previous, state)
            state, where = out.state, f"{case}, text {text}, anchor {anchor}, slot {slot}"
            same(out.logits[0], peer.said(case, text)[anchor - 1, slot], where)
            if net.config.markov.confidence != "none":
                same(out.confidence[0], peer.said(case, text, "confidence")[anchor - 1, slot], f"{where}, confidence")
                heads += 1
    assert heads > 30 or net.config.markov.confidence == "none"


# --- drafters -------------------------------------------------------------------------------------------------------


def make(peer, case):
    return DRAFTERS[CASES[case][0]](peer.net(case), vocab=V, max_rows=3)


def rows_of(peer, temperature):
    params = SamplingParams(temperature=temperature)
    return [Sequence(t, text.tokens[:1].tolist(), 1, params) for t, text in enumerate(peer.texts)]


def advance(drafter, row, text, root):
    """Commit the text up to `root`, in pieces of up to three tokens."""
    while len(row.tokens) - 1 < root:
        start = len(row.tokens) - 1
        end = min(root, start + 3)
        row.tokens += text.tokens[start + 1 : end + 1].tolist()
        drafter.observe([row], [row.tokens[start:end]], [text.felt(start, end)])


def comparable(case, root, depth):
    """Where a window cuts something off, the package cuts it elsewhere: see the tests of the networks."""
    window = window_of(case)
    return window is None or CASES[case][0] == "peagle" or root + depth < window


@pytest.mark.parametrize("case", list(CASES))
def test_greedy_drafts(peer, case):
    """Our drafters, fed by `observe`, draft the package's most probable tokens one after the other; later again."""
    drafter, rows = make(peer, case), rows_of(peer, 0.0)
    drafts = {t: peer.said(case, t, "drafts").tolist() for t in range(3)}
    for which in range(2):
        for t, row in enumerate(rows):
            advance(drafter, row, peer.texts[t], drafts[t][which][0])
        wanted = [drafts[t][which][1:] for t in range(3)]
        draft = drafter.propose(rows, [len(w) for w in wanted], RequestRngs(rows))
        for t, want in enumerate(wanted):
            root = len(rows[t].tokens) - 1
            if comparable(case, root, len(want)):
                assert draft.tokens[t, 1 : int(draft.length[t])].tolist() == want, f"{case}, text {t}, root {root}"


class Teacher:
    """Draws the texts' own tokens, whatever the law."""

    def __init__(self, texts, rows):
        self.texts, self.ends = texts, [len(row.tokens) for row in rows]

    def draft(self, w, depth, active=None):
        return torch.stack([text.tokens[end + depth - 1] for text, end in zip(self.texts, self.ends, strict=True)])


def law_of(peer, case, text, root, depth):
    """The law [V] from which the package would draw the token at `depth` behind the text up to `root`."""
    said, block, found = peer.said(case, text), CASES[case][0] in ("dflash", "dflash2", "dspark"), peer.read(case)
    logits = said[root - 1, depth - 1 + first_slot(case)] if block else said[depth - 1, root - 1]
    ids = found.tensors["vocab_map"] if found.config.vocab.reduced else torch.arange(V)
    return torch.full((V,), -torch.inf).index_copy(0, ids, logits).log_softmax(0)


@pytest.mark.parametrize("case", list(CASES))
def test_recorded_laws(peer, case):
    """At temperature 1 the rows of q our drafters record are the package's laws, given the same drafted tokens."""
    drafter, rows, walk = make(peer, case), rows_of(peer, 1.0), Walk(6, 4, [n - 9 for n in LENGTHS])
    compared = 0
    for pieces in walk.rounds():
        live = [rows[t] for t in pieces]
        for t, (_, end) in pieces.items():
            advance(drafter, rows[t], peer.texts[t], end)
        draft = drafter.propose(live, [STEPS] * len(live), Teacher([peer.texts[t] for t in pieces], live))
        for b, (t, (_, root)) in enumerate(pieces.items()):
            for depth in range(1, int(draft.length[b])):
                if comparable(case, root, depth):
                    ours, theirs = draft.q[b, depth - 1].log(), law_of(peer, case, t, root, depth)
                    assert bool((ours.isinf() == theirs.isinf()).all())
                    same(ours.nan_to_num(neginf=0), theirs.nan_to_num(neginf=0), f"{case}, {t}, root {root}, {depth}")
                    compared += 1
    assert compared >= 12


# --- files we write -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reread(peer, tmp_path_factory):
    """What the package says after its `from_pretrained` read what we wrote from what we read."""
    out = tmp_path_factory.mktemp("written")
    target = peer.folder / "target"
    base = TargetFolder(target, str(target))
    for case in CASES:
        write_drafter(peer.read(case), "speculators", out / case, base=base)
    run_side("read", out / "said.safetensors", *(out / case for case in CASES))
    return load_file(out / "said.safetensors")


@pytest.mark.parametrize("case", list(CASES))
def test_it_reads_what_we_write(peer, reread, case):
    """Same classes, nothing left unloaded, same numbers."""
    names = [name for name in peer.tensors if name.startswith(f"{case}.")]
    assert names
    for name in names:
        same(reread[name].nan_to_num(), peer.tensors[name].nan_to_num(), name)
