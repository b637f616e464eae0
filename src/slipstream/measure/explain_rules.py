"""Which rule verified a round, which coin belongs to which node, and what all that means in words. No drawing here."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from slipstream.types import Draft, Draw, Laws

if TYPE_CHECKING:
    from slipstream.measure.explain import Coin, RoundView, Story


FEW = 4  # refusals below which nothing is said about refusals in general


def rule_of(name: str, draft: Draft, laws: Laws) -> str:
    """Return how the one row of a draft was verified: greedy, chain, block, tree or coupled."""
    if laws.points is not None:
        return "greedy"
    if name != "auto":
        return name
    if not draft.chain:
        return "tree"
    length = int(draft.length[0])
    drawn = bool((draft.draw[0, 1:length] != int(Draw.FIXED)).any())
    return "block" if drawn and length > 2 else "chain"


def coins_of(draft: Draft, path: list[int], coins: list[Coin]) -> dict[int, Coin]:
    """Give each node its coin: rules flip for a chain's nodes in order, for a tree's only where the walk comes by, and
    there only for drawn nodes and their earlier siblings: of the others a draw from what is left picks one."""
    length = int(draft.length[0])
    if len(coins) >= length - 1 and draft.chain:
        return {i: coins[i - 1] for i in range(1, length)}
    parents, draw = draft.parents[0].tolist(), draft.draw[0].tolist()
    last_drawn = {parents[i]: i for i in range(1, length) if draw[i] != int(Draw.FIXED)}
    found, node, flips = {}, 0, iter(coins)
    for i in range(1, length):
        if parents[i] == node and i <= last_drawn.get(node, 0):
            coin = next(flips, None)
            if coin is None:
                break
            found[i] = coin
            node = i if i in path else node
    return found


@dataclass(frozen=True)
class Summary:
    """What the rounds have in common. Shares are 0 to 1; None where there was nothing to count."""

    rounds: int
    tokens: int
    drafted: int
    kept: int
    tokens_per_round: float
    acceptance: float | None
    no_draft: float
    by_depth: list[tuple[int, int, int]]  # depth, reached, kept
    refused: list[tuple[str, int, float, float | None]]  # token, times, mean p, mean q
    p_refused: float | None
    q_refused: float | None
    entropy_kept: float | None
    entropy_refused: float | None
    wasted: float
    reasons: list[str]


def summarise(story: Story) -> Summary:
    """Say what happened over all rounds, and why acceptance is what it is."""
    nodes = [n for r in story.rounds for n in r.nodes]
    kept = [n for n in nodes if n.state == "kept"]
    refused = [n for n in nodes if n.state == "refused"]
    drawn = [n.q for n in refused if n.q is not None]
    tokens = story.rounds[-1].tokens_so_far if story.rounds else 0
    rounds = len(story.rounds)
    facts: dict[str, Any] = {
        "rounds": rounds,
        "tokens": tokens,
        "drafted": len(nodes),
        "kept": len(kept),
        "tokens_per_round": tokens / rounds if rounds else 0.0,
        "acceptance": len(kept) / len(nodes) if nodes else None,
        "no_draft": sum(not r.nodes for r in story.rounds) / rounds if rounds else 0.0,
        "by_depth": _by_depth(story.rounds),
        "refused": _most_refused(refused),
        "p_refused": _mean([n.p for n in refused]),
        "q_refused": _mean(drawn),
        "entropy_kept": _mean([n.entropy for n in kept]),
        "entropy_refused": _mean([n.entropy for n in refused]),
        "wasted": sum(n.state == "unreached" for n in nodes) / len(nodes) if nodes else 0.0,
    }
    return Summary(**facts, reasons=_reasons(facts, story.params.get("temperature", 0.0)))


def _by_depth(rounds: list[RoundView]) -> list[tuple[int, int, int]]:
    reached: Counter[int] = Counter()
    kept: Counter[int] = Counter()
    for view in rounds:
        for depth in {n.depth for n in view.nodes if n.state != "unreached"}:
            reached[depth] += 1
        for n in view.nodes:
            kept[n.depth] += n.state == "kept"
    return [(depth, reached[depth], kept[depth]) for depth in sorted(reached)]


def _most_refused(refused: list[Any], most: int = 8) -> list[tuple[str, int, float, float | None]]:
    found = []
    for token, times in Counter(n.token for n in refused).most_common(most):
        same = [n for n in refused if n.token == token]
        found.append((token, times, fmean(n.p for n in same), _mean([n.q for n in same if n.q is not None])))
    return found


def _mean(values: list[float]) -> float | None:
    return fmean(values) if values else None


def _reasons(facts: dict[str, Any], temperature: float) -> list[str]:
    """Return sentences, the most telling first; each says what was seen and what it suggests."""
    said = []
    rate, no_draft, by_depth = facts["acceptance"], facts["no_draft"], facts["by_depth"]
    if rate is None:
        return ["Nothing was drafted at all: the drafter never had a guess, so every round was plain decoding."]
    if no_draft >= 0.3:
        said.append(
            f"In {no_draft:.0%} of the rounds there was no draft. A drafter that copies needs text that repeats; "
            "for other text a draft model always has a guess."
        )
    if rate >= 0.75:
        said.append(f"{rate:.0%} of the drafted tokens stood: the drafter knows this text well. Longer drafts may pay.")
    first = by_depth[0]
    if first[1] >= 3 and first[2] / first[1] < 0.5:
        said.append(
            f"The first drafted token already fell in {1 - first[2] / first[1]:.0%} of the rounds that had one: "
            "the drafter is off from the start, not only far ahead. Another drafter helps more than a shorter draft."
        )
    elif facts["wasted"] >= 0.4:
        said.append(
            f"{facts['wasted']:.0%} of the drafted tokens were never looked at, because one before them fell: "
            "shorter drafts would cost less and keep almost as much."
        )
    enough = sum(times for _, times, _, _ in facts["refused"]) >= FEW
    if enough and _sure(facts):
        said.append(
            f"Where it was refused the drafter was sure (mean q {facts['q_refused']:.2f}) and the target was not "
            f"of its opinion (mean p {facts['p_refused']:.2f}): the two models disagree, whatever the temperature."
        )
    if enough and (facts["entropy_refused"] or 0.0) > 1.5 and temperature > 0:
        said.append(
            f"The target itself was undecided where drafts fell (entropy {facts['entropy_refused']:.1f} nats): "
            "no drafter can foresee such a draw. "
            f"A lower temperature than {temperature:g}, or top-p, makes the text easier to foresee."
        )
    return said or [f"{rate:.0%} of the drafted tokens stood, with nothing unusual about those that fell."]


def _sure(facts: dict[str, Any]) -> bool:
    p, q = facts["p_refused"], facts["q_refused"]
    return p is not None and q is not None and q > 0.6 and q - p > 0.3


def in_words(view: RoundView) -> str:
    """Tell one round as a short paragraph."""
    count = len(view.nodes)
    own = repr(view.own)
    if not count:
        return f"The drafter had no guess, so this round is plain decoding: the target wrote {own}."
    said = [f"The drafter guessed {count} token{'s' if count != 1 else ''}; {_stood(view.kept, count)}."]
    if view.kind == "bonus":
        said.append(f"The pass had already computed what comes next, so the target added {own} for free.")
        return " ".join(said)
    fallen = next((n for n in view.nodes if n.state == "refused"), None)
    if fallen is not None:
        said.append(_fall(view, fallen))
    said.append(_REPLACED[view.rule].format(own=own))
    return " ".join(said)


def _stood(kept: int, count: int) -> str:
    if kept == count:
        return "all of them stood" if count > 1 else "it stood"
    return f"{kept} of them stood" if kept else ("none stood" if count > 1 else "it fell")


def _fall(view: RoundView, node: Any) -> str:
    token = repr(node.token)
    if view.rule == "greedy":
        return f"{token} fell, since it is not the target's first choice."
    if view.rule == "coupled":
        return f"{token} fell, since the target's own draw at this place, made with the same noise, is another token."
    if view.rule == "block":
        where = f"the last level whose coin passed ends before {token}" if view.kept else "no level's coin passed"
        return f"The whole draft is judged at once: {where}."
    if node.coin is None:
        return f"{token} fell, since the target's own draw at this place is another token."
    if node.q is None:
        why = f"the target gives it {node.p:.2f}"
    else:
        why = f"the target gives it {node.p:.2f}, the drafter gave it {node.q:.2f}"
    coin = node.coin
    return f"{token} fell: {why}, so it stands with chance {coin.chance:.2f}, and the coin showed {coin.drawn:.2f}."


_REST = (
    "In its place the target drew {own} from what is left of its law once the drafter's share is taken out: that makes "
    "the result exactly as likely as in plain decoding."
)
_REPLACED = {
    "greedy": "The target's first choice, {own}, takes its place.",
    "coupled": "That token, {own}, is the output.",
    "chain": _REST,
    "block": _REST,
    "tree": _REST,
}
