"""One self-contained HTML page: a title, sections, tables and charts, with nothing fetched from anywhere.

In: texts and numbers. Out: strings of HTML. It works offline and in print, follows the reader's light or dark setting,
and escapes every text. The charts are those of `charts`, offered here so that a report needs one import.
"""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.measure.charts import Bar, bars, esc, lines, stacked

__all__ = ["Bar", "bars", "esc", "facts", "lines", "page", "section", "stacked", "table"]

_STYLE = """
:root{color-scheme:light dark;--back:#fdfdfc;--ink:#1c2026;--soft:#5d6673;--line:#d9dde3;--card:#f3f5f7;
--c0:#2a67d8;--c1:#d9730d;--c2:#0f8a7c;--c3:#8a4fc4;--c4:#c93a4b;--c5:#7a828e}
@media (prefers-color-scheme:dark){:root{--back:#14171b;--ink:#e8eaed;--soft:#9aa4b1;--line:#333a44;--card:#1d2229;
--c0:#6fa0ff;--c1:#f0a04b;--c2:#45c2b1;--c3:#b98af0;--c4:#f07a86;--c5:#9aa4b1}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:60rem;margin:0 auto;padding:2.5rem 1.25rem 4rem}
h1{font-size:1.7rem;line-height:1.25;margin:0 0 .5rem}
h2{font-size:1.2rem;margin:2.5rem 0 .6rem;padding-top:.8rem;border-top:1px solid var(--line)}
h3{font-size:1rem;margin:1.4rem 0 .4rem}
p,ul,ol{max-width:46rem;margin:.5rem 0}.lead{font-size:1.08rem;color:var(--soft)}
.note{color:var(--soft);font-size:.9rem}
.wide{overflow-x:auto;margin:.8rem 0}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}
th{font-weight:600;color:var(--soft);border-bottom:1.5px solid var(--line)}
th,td{padding:.32rem .8rem .32rem 0;text-align:right;white-space:nowrap;vertical-align:top}
td{border-bottom:1px solid var(--line)}th:first-child,td:first-child{text-align:left;white-space:normal}
pre,code{font:.86rem/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
pre{background:var(--card);padding:.8rem 1rem;border-radius:.4rem;overflow-x:auto}
dl{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:.2rem 1.2rem;font-size:.9rem;margin:.8rem 0}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
figure{margin:1rem 0}figcaption{color:var(--soft);font-size:.9rem;margin-top:.3rem}
svg.chart{display:block;width:100%;max-width:46rem;height:auto}
svg.chart text{fill:var(--ink);font:12px system-ui,-apple-system,"Segoe UI",sans-serif}
svg.chart text.soft{fill:var(--soft)}
svg.chart .axis{stroke:var(--line);stroke-width:1}svg.chart .base{stroke:var(--ink);stroke-dasharray:4 3}
svg.chart .whisker{stroke:var(--ink);stroke-width:1.4}
svg.chart .f0{fill:var(--c0)}svg.chart .f1{fill:var(--c1)}svg.chart .f2{fill:var(--c2)}
svg.chart .f3{fill:var(--c3)}svg.chart .f4{fill:var(--c4)}svg.chart .f5{fill:var(--c5)}
svg.chart .s0{stroke:var(--c0)}svg.chart .s1{stroke:var(--c1)}svg.chart .s2{stroke:var(--c2)}
svg.chart .s3{stroke:var(--c3)}svg.chart .s4{stroke:var(--c4)}svg.chart .s5{stroke:var(--c5)}
svg.chart polyline{fill:none;stroke-width:2;stroke-linejoin:round}
@media print{main{padding:0;max-width:none}h2{break-after:avoid}figure,tr{break-inside:avoid}}
"""


def page(title: str, sections: list[str], *, lead: str = "") -> str:
    """Return a whole HTML page. `title` and `lead` are texts and get escaped; `sections` are HTML and stay as given."""
    said = f'<p class="lead">{esc(lead)}</p>\n' if lead else ""
    body = "\n".join(sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{esc(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{esc(title)}</h1>\n{said}{body}\n</main>\n</body>\n</html>\n"
    )


def section(title: str, *parts: str, note: str = "") -> str:
    """Return a section of HTML parts under an escaped heading, with an escaped note at its end."""
    below = [f'<p class="note">{esc(note)}</p>'] if note else []
    return "\n".join([f"<section>\n<h2>{esc(title)}</h2>", *parts, *below, "</section>"])


def table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """Return a table; every cell is a text and gets escaped. The first column is to the left, the rest to the right."""
    top = "".join(f'<th scope="col">{esc(cell)}</th>' for cell in head)
    lines_ = ["<tr>" + "".join(f"<td>{esc(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    inner = "\n".join(lines_)
    return f'<div class="wide"><table>\n<thead><tr>{top}</tr></thead>\n<tbody>\n{inner}\n</tbody></table></div>'


def facts(pairs: Sequence[tuple[object, object]]) -> str:
    """Return names and what they stand for, one pair per line; long values wrap. Everything gets escaped."""
    inner = "\n".join(f"<dt>{esc(name)}</dt><dd>{esc(value)}</dd>" for name, value in pairs)
    return f"<dl>\n{inner}\n</dl>"
