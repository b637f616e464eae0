"""Draw a `Story` as one HTML page: the text by who wrote it, why acceptance is what it is, and every round.

In: a story and its summary. Out: HTML that needs nothing else. Trees are nested boxes, a chain is a row of them.
"""

from __future__ import annotations

from slipstream.measure.explain import Node, RoundView, Story
from slipstream.measure.explain_rules import Summary, in_words
from slipstream.measure.page import Bar, bars, esc, lines, page, section, table


def story_page(story: Story, found: Summary) -> str:
    """Return the page."""
    sections = [
        f"<style>{_STYLE}</style>",
        section("The text", _prompt(story), _text(story), note=_TEXT_NOTE),
        section("What happens in a round", _INTRO, _legend()),
        section("In numbers", _numbers(found)),
        section("Why acceptance is what it is", _reasons(found), _charts(story, found), _refused(found)),
        section("Every round", *[_round(view) for view in story.rounds]),
        section("Words", _WORDS),
    ]
    how = f"{story.model}, drafter {story.drafter}, temperature {story.params['temperature']:g}"
    lead = f"How {found.tokens} tokens came out of {found.rounds} passes of {how}, seed {story.params['seed']}."
    return page("slipstream explain", sections, lead=lead)


def visible(token: str) -> str:
    """Return a token's text with its white space made visible."""
    shown = token.replace("\n", "⏎").replace("\t", "⇥")
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in shown).replace(" ", "␣") or "(nothing)"


def _prompt(story: Story) -> str:
    text = story.prompt if len(story.prompt) <= 1500 else story.prompt[:700] + "\n[...]\n" + story.prompt[-700:]
    title = f"Prompt, {len(story.prompt)} characters"
    return f'<details><summary>{title}</summary><pre class="flow">{esc(text)}</pre></details>'


def _text(story: Story) -> str:
    parts = []
    for view in story.rounds:
        for token, who in view.emitted:
            parts.append(f'<span class="{who}" title="round {view.number}">{esc(token)}</span>')
    return f'<pre class="flow">{"".join(parts)}</pre>'


def _legend() -> str:
    items = [
        ("kept", "✓ stood"),
        ("refused", "✗ fell"),
        ("unreached", "· not looked at"),
        ("own", "the target's own token"),
    ]
    boxes = "".join(f'<span class="box {name} small">{esc(text)}</span>' for name, text in items)
    return f'<p class="legend">{boxes}</p>'


def _numbers(found: Summary) -> str:
    rows = [
        ["tokens", str(found.tokens)],
        ["target passes (rounds)", str(found.rounds)],
        ["tokens per pass, the target's own included", f"{found.tokens_per_round:.2f}"],
        ["drafted, of which stood", f"{found.drafted}, {found.kept}" + _share(found.acceptance)],
        ["rounds without a draft", f"{found.no_draft:.0%}"],
        ["drafted tokens that were not looked at", f"{found.wasted:.0%}"],
        ["mean p of refused tokens", _number(found.p_refused)],
        ["mean q of refused tokens", _number(found.q_refused)],
        [
            "target's entropy where tokens stood / fell (nats)",
            f"{_number(found.entropy_kept)} / {_number(found.entropy_refused)}",
        ],
    ]
    return table(["what", "value"], rows)


def _share(value: float | None) -> str:
    return "" if value is None else f" ({value:.0%})"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _reasons(found: Summary) -> str:
    return "<ul>" + "".join(f"<li>{esc(reason)}</li>" for reason in found.reasons) + "</ul>"


def _charts(story: Story, found: Summary) -> str:
    items = [
        Bar(f"drafted token {d}", 100 * kept / reached, note=f"{kept} of {reached}")
        for d, reached, kept in found.by_depth
    ]
    running = [(float(v.number), v.kept_so_far / v.drafted_so_far) for v in story.rounds if v.drafted_so_far]
    parts = []
    if items:
        parts.append("<h3>Share that stood, of those looked at</h3>" + bars(items, unit="%"))
    if len(running) > 1:
        chart = lines({"accepted / drafted so far": running}, x="round", y="acceptance")
        parts.append("<h3>Acceptance as the text grew</h3>" + chart)
    return "".join(parts)


def _refused(found: Summary) -> str:
    if not found.refused:
        return ""
    rows = [[visible(token), str(n), f"{p:.3f}", "-" if q is None else f"{q:.3f}"] for token, n, p, q in found.refused]
    head = ["refused most often", "times", "mean p (target)", "mean q (drafter)"]
    return "<h3>Refused tokens</h3>" + table(head, rows)


def _round(view: RoundView) -> str:
    root = f'<span class="box root" title="last token so far"><b>{esc(visible(view.root))}</b><i>so far</i></span>'
    own = f'<span class="box own"><b>{esc(visible(view.own))}</b><i>{view.kind}</i></span>'
    sofar = f"{view.tokens_so_far} token(s) in {view.number} pass(es)"
    if view.drafted_so_far:
        share = view.kept_so_far / view.drafted_so_far
        sofar += f"; {view.kept_so_far} of {view.drafted_so_far} drafted stood ({share:.0%})"
    tree = f'<div class="tree">{root}{_children(view, 0)}</div>'
    inner = f'<div class="wide">{tree}</div><p class="arrow">then the target\'s own token: {own}</p>'
    return (
        f"<article><h3>Round {view.number} <small>{esc(_RULES[view.rule])}</small></h3>"
        f"<p>{esc(in_words(view))}</p>{inner}"
        f'{_details(view)}<p class="note">So far: {esc(sofar)}.</p></article>'
    )


def _children(view: RoundView, parent: int) -> str:
    kids = [n for n in view.nodes if n.parent == parent]
    if not kids:
        return ""
    rows = "".join(f'<div class="branch">{_box(view, n)}{_children(view, n.index)}</div>' for n in kids)
    return f'<div class="kids">{rows}</div>'


def _box(view: RoundView, node: Node) -> str:
    mark = {"kept": "✓", "refused": "✗", "unreached": "·"}[node.state]
    meters = _meter("p", node.p) + ("" if node.q is None else _meter("q", node.q))
    fixed = "<i>a fixed guess</i>" if node.q is None else ""
    coin = f"<i>{_coin(view, node)}</i>" if node.coin is not None else ""
    title = f"chance of acceptance here {node.overlap:.2f}; entropy of the target {node.entropy:.2f} nats"
    name = f"<b>{mark} <em>{esc(visible(node.token))}</em></b>"
    return f'<span class="box {node.state}" title="{title}">{name}{meters}{fixed}{coin}</span>'


def _coin(view: RoundView, node: Node) -> str:
    assert node.coin is not None
    sign = "&lt;" if node.coin.passed else "≥"
    level = "level coin" if view.rule == "block" else "coin"
    return f"{level} {node.coin.drawn:.2f} {sign} {node.coin.chance:.2f}"


def _meter(name: str, value: float) -> str:
    wide = max(0.0, min(1.0, value)) * 100
    return f'<i class="meter">{name} {value:.3f}<u><s class="{name}" style="width:{wide:.1f}%"></s></u></i>'


def _details(view: RoundView) -> str:
    drawn = view.rule not in ("greedy", "coupled")
    if view.kind == "correction" and drawn:
        title, last = "what is left of the target's law, of which its own token was drawn", "residual"
    else:
        title, last = "the target's law, which its own token came from", "share"
    rows = [
        [visible(c.token), f"{c.p:.4f}", "-" if c.q is None else f"{c.q:.4f}", f"{c.share:.4f}"] for c in view.choices
    ]
    laws = table(["token", "p (target)", "q (drafter)", last], rows)
    return f"<details><summary>{title}</summary>{laws}</details>"


_RULES = {
    "greedy": "greedy: a guess stands if it is the target's first choice",
    "chain": "token by token: a guess stands with chance min(1, p/q)",
    "block": "block: the whole draft is judged at once, the last level that passes wins",
    "tree": "tree: the guesses of a place are tried one after another",
    "coupled": "shared noise: a guess stands if the target draws the same token",
}
_TEXT_NOTE = (
    "Green: guessed by the drafter and confirmed. Underlined: written by the target. Point at a token for its round."
)
_INTRO = """<p>A language model normally runs once per token. Here a cheap <b>drafter</b> guesses the next few
tokens, and the model, the <b>target</b>, looks at all of them in <b>one pass</b>. For every guess that
pass gives the probability the target itself would have given that token, <b>p</b>. If the drafter drew
its guess at random, <b>q</b> is the probability it drew it with.</p>
<ol><li>A guess with p at least q always stands. One with p below q stands with chance p/q: a
<b>coin</b>, a random number from 0 to 1, must fall below that.</li>
<li>At the first guess that falls the round ends. The target draws another token in its place, from what
is <b>left</b> of p once q is taken out (the larger of p - q and 0, scaled to 1).</li>
<li>If all guesses stand, the same pass already says what comes next: one more token for free, the
<b>bonus</b>.</li></ol>
<p>The two steps together give every token exactly the probability p: the text is as likely as without a
drafter, only sooner. A fixed guess (copied text, or temperature 0) is the case q = 1.</p>"""
_WORDS = """<p><b>p</b>: the target's probability, after temperature, top-p and all other settings (at temperature 0:
the plain probability, for information; only the first choice can stand). <b>q</b>: the drafter's.
<b>Coin</b>: stands if below the chance next to it. <b>Entropy</b>: how undecided the target is; 0 is
certain, 1 nat is a choice among about three. <b>Block</b> verification flips a coin for each prefix of
the draft and keeps the longest whose coin passes, so a token can stand although its own coin failed.</p>"""
_STYLE = """
pre.flow{white-space:pre-wrap;overflow-wrap:anywhere}
.drafter{background:color-mix(in srgb,var(--c2) 26%,transparent);border-radius:.2rem}
.target{text-decoration:underline dotted;text-underline-offset:3px}
article{border:1px solid var(--line);border-radius:.5rem;padding:.3rem 1rem .6rem;margin:1rem 0;break-inside:avoid}
article h3{margin:.5rem 0}article h3 small{color:var(--soft);font-weight:400;margin-left:.6rem}
article h4{margin:.8rem 0 .2rem;font-size:.9rem}
.tree,.branch{display:flex;align-items:center}.kids{display:flex;flex-direction:column;gap:.4rem}
.kids>.branch::before{content:"→";color:var(--soft);margin:0 .3rem}
.box{display:inline-flex;flex-direction:column;border:2px solid var(--line);border-radius:.4rem;padding:.2rem .5rem;
min-width:5.2rem;background:var(--card);font-size:.85rem}
.box.small{min-width:0;margin-right:.5rem}.box b{font-family:ui-monospace,Menlo,Consolas,monospace;white-space:nowrap}
.box i{font-style:normal;color:var(--soft);font-size:.74rem;white-space:nowrap}
.box.kept{border-color:var(--c2)}.box.refused{border-color:var(--c4)}.box em{font-style:normal}
.box.refused em{text-decoration:line-through}
.box.unreached{border-style:dashed;opacity:.65}.box.own{border-color:var(--c0)}.box.root{background:none}
.meter u{display:block;height:.3rem;background:var(--line);border-radius:.2rem;text-decoration:none}
.meter s{display:block;height:100%;border-radius:.2rem;background:var(--c0)}.meter s.q{background:var(--c1)}
summary{cursor:pointer;color:var(--soft)}.arrow{margin:.3rem 0}
"""
