"""Curves as a picture (SVG) and in the terminal. Small on purpose: a demo shouldn't install a plotting library."""

COLOURS = ["#2f6fed", "#b0b4bb", "#d9822b"]


def lines(curves, rows=10, width=60):
    """Text with one mark per value and curve, 0 to 1 upwards: curves is {label: values}."""
    grid = [[" "] * width for _ in range(rows + 1)]
    n = max(2, max(map(len, curves.values())))
    for mark, values in reversed(list(zip("*·+", curves.values()))):  # the first curve is drawn on top
        for i, v in enumerate(values):
            grid[rows - round(min(1, max(0, v)) * rows)][round(i * (width - 1) / (n - 1))] = mark
    out = []
    for i, row in enumerate(grid):
        label = f"{1 - i / rows:.1f}" if i % (rows // 2) == 0 else ""
        out.append(f"  {label:>3} │{''.join(row).rstrip()}")
    out.append("      └" + "─" * width)
    return "\n".join(out)


def svg(path, curves, title, x_label, y_label, note=""):
    """Writes a picture of 720 by 420 with one line per curve, values from 0 to 1."""
    left, top, wide, high = 64, 76, 500, 280
    n = max(2, max(map(len, curves.values())))

    def at(i, v):
        return f"{left + i * wide / (n - 1):.1f},{top + high - min(1, max(0, v)) * high:.1f}"

    s = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 420" font-family="system-ui, sans-serif" font-size="13">',
         '<rect width="720" height="420" fill="#ffffff"/>',
         f'<text x="{left}" y="32" font-size="17" font-weight="600" fill="#1b1f24">{escape(title)}</text>',
         f'<text x="{left}" y="54" fill="#5a626c">{escape(note)}</text>']
    for i in range(6):
        y = top + high - i * high / 5
        s.append(f'<line x1="{left}" x2="{left + wide}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e4e7eb"/>'
                 f'<text x="{left - 10}" y="{y + 4:.1f}" text-anchor="end" fill="#5a626c">{i / 5:.1f}</text>')
    for i in sorted({0, (n - 1) // 4, (n - 1) // 2, 3 * (n - 1) // 4, n - 1}):
        x = left + i * wide / (n - 1)
        s.append(f'<text x="{x:.1f}" y="{top + high + 20}" text-anchor="middle" fill="#5a626c">{i + 1}</text>')
    s.append(f'<text x="{left + wide / 2}" y="{top + high + 44}" text-anchor="middle" fill="#1b1f24">{escape(x_label)}</text>')
    s.append(f'<text transform="translate(20 {top + high / 2}) rotate(-90)" text-anchor="middle" fill="#1b1f24">{escape(y_label)}</text>')
    ends = []
    for colour, (label, values) in zip(COLOURS, curves.items()):
        points = " ".join(at(i, v) for i, v in enumerate(values))
        s.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5" stroke-linejoin="round"/>')
        ends.append([top + high - values[-1] * high + 4, label, colour])
    ends.sort()
    for i, (y, label, colour) in enumerate(ends):  # labels beside the ends, never on top of each other
        y = ends[i][0] = max(y, ends[i - 1][0] + 18 if i else 0)
        s.append(f'<text x="{left + wide + 10}" y="{y:.1f}" fill="{colour}" font-weight="600">{escape(label)}</text>')
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(s) + "\n</svg>\n")


def escape(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
