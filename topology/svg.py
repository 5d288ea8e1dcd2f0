"""The few SVG shapes that the pictures are composed of."""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.sax.saxutils import escape, quoteattr

INK, SOFT, PAPER, LINE = "#1d2733", "#5b6877", "#ffffff", "#c8d0da"
DOMAINS = ("#3f74b5", "#2f9e79", "#8c62b8", "#c06a3a")
TINTS = ("#e6eff9", "#e3f4ed", "#f0e9f7", "#f8ebe3")
SPARE, LINK, UNKNOWN = "#e3a32b", "#6a9a1f", "#b3403a"


@dataclass(slots=True)
class Drawing:
    """A picture of fixed size that shapes are added to.

    Attributes:
        width: In pixels.
        height: In pixels.
        title: What it shows, for screen readers too.
    """

    width: float
    height: float
    title: str
    _shapes: list[str] = field(default_factory=list)

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str = PAPER,
        stroke: str = LINE,
        round_: float = 0,
        dashed: bool = False,
    ) -> None:
        """Add a rectangle."""
        self._shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{round_:g}" '
            f'fill="{fill}" stroke="{stroke}"{_dash(dashed)}/>'
        )

    def line(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        *,
        stroke: str = LINE,
        width: float = 1,
        dashed: bool = False,
    ) -> None:
        """Add a line."""
        self._shapes.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{stroke}" '
            f'stroke-width="{width:g}"{_dash(dashed)}/>'
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: float = 13,
        fill: str = INK,
        bold: bool = False,
        anchor: str = "start",
    ) -> None:
        """Add one line of text; y is its baseline, anchor is start, middle or end."""
        weight = ' font-weight="600"' if bold else ""
        self._shapes.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{fill}" '
            f'text-anchor="{anchor}"{weight}>{escape(words)}</text>'
        )

    def heading(self, words: str, under: str) -> None:
        """Add the title and the line under it."""
        self.text(32, 42, words, size=22, bold=True)
        self.text(32, 64, under, fill=SOFT)

    def render(self) -> str:
        """Return the SVG document."""
        size = f'width="{self.width:g}" height="{self.height:g}"'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} '
                f'viewBox="0 0 {self.width:g} {self.height:g}" role="img" '
                f"aria-label={quoteattr(self.title)} "
                'font-family="Helvetica, Arial, DejaVu Sans, sans-serif">',
                f"<title>{escape(self.title)}</title>",
                f'<rect width="100%" height="100%" fill="{PAPER}"/>',
                *self._shapes,
                "</svg>\n",
            ]
        )


def _dash(dashed: bool) -> str:
    return ' stroke-dasharray="5 4"' if dashed else ""
