"""Write the tables of docs/decode-profile.md anew from `moeplan validate profile --json`; the prose is kept.

Run by hand after a change of the model: .venv/bin/python .ci/profile_page.py
"""

import json
import pathlib
import re
import subprocess
import sys

PAGE = pathlib.Path("docs/decode-profile.md")


def main() -> None:
    """Replace the three tables between their headings."""
    command = [sys.executable, "-m", "moeplan", "validate", "profile", "--json"]
    document = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    operators = [
        f"| {row['name']} | {row['measured'] * 1e6:.1f} | {row['predicted'] * 1e6:.1f} | {row['error']:+.1%} | "
        f"{row['share_of_layer']:.1%} | {row['kind']} |"
        for row in document["rows"]
        if row["share_of_layer"] is not None
    ]
    scales = {
        "layer": ("layer, µs", 1e6),
        "step": ("step, ms", 1e3),
        "tok/s/GPU": ("tok/s/GPU, derived", 1),
        "tok/s/GPU of the step": ("tok/s/GPU, from the measured step", 1),
    }
    totals = [
        f"| {scales[row['name']][0]} | {row['measured'] * scales[row['name']][1]:,.1f} | "
        f"{row['predicted'] * scales[row['name']][1]:,.1f} | {row['error']:+.1%} |"
        for row in document["rows"]
        if row["share_of_layer"] is None
    ]
    derived = next(row for row in document["rows"] if row["name"] == "tok/s/GPU")
    ours = f"| moeplan | the profile's own | {derived['predicted']:,.0f} | {derived['error']:+.1%} | run |"
    text = PAGE.read_text(encoding="utf-8")
    text = re.sub(r"(?:\| (?:attn|gate|moe|shared)\.[^\n]*\n)+", "\n".join(operators) + "\n", text, count=1)
    total_rows = r"\| layer, µs [^\n]*\n\| step, ms [^\n]*\n(?:\| tok/s/GPU, [^\n]*\n)+"
    text = re.sub(total_rows, "\n".join(totals) + "\n", text)
    text = re.sub(r"\| moeplan \| [^\n]*\n", ours + "\n", text)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
