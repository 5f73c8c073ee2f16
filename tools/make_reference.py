"""Writes docs/reference/ from what the program says about itself: ./dev reference.

    tools/make_reference.py [--program build/weightwire] [--out docs/reference] [--check]

`weightwire help --json` prints every command, option, setting and kind of error, read from the declarations that the
program itself uses. commands.md and settings.md contain only that. With --check nothing is written, and the exit status
is 1 if a page differs.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEAD = "<!-- Made by ./dev reference from the program's own help. Do not edit. -->\n"
WIDTH = 120


def described(program):
    return json.loads(subprocess.run([program, "help", "--json"], capture_output=True, text=True, check=True).stdout)


def cell(text):
    """Text of a table: `|` would end the cell, and a line break the row."""
    return " ".join(str(text).split()).replace("|", "\\|")


def code(text):
    return f"`{cell(text)}`" if text else ""


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(row) + " |\n" for row in lines)


def wrapped(words, width=WIDTH):
    lines = [""]
    for word in words.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return "\n".join(lines) + "\n"


def paragraphs(notes):
    """Notes of a command: paragraphs, and indented lines as code."""
    text, paragraph, example = "", [], []

    def end():
        nonlocal text
        if paragraph:
            text += "\n" + wrapped(" ".join(paragraph))
        if example:
            text += "\n```\n" + "".join(line[2:].rstrip() + "\n" for line in example) + "```\n"
        paragraph.clear()
        example.clear()

    for line in notes.splitlines():
        if line.startswith(" "):
            if paragraph:
                end()
            example.append(line)
        elif line:
            if example:
                end()
            paragraph.append(line)
        else:
            end()
    end()
    return text


def option_rows(options):
    for option in options:
        yield [code(option["title"]), cell(option["help"]), code(option["default"]), code(option["variable"])]


def options_table(options):
    return table(["option", "what it does", "default", "variable"], option_rows(options))


def sentence(text):
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def commands_page(program):
    text = HEAD + "\n# Commands\n" + paragraphs(program["summary"])
    text += "\n" + table(
        ["command", "what it does"],
        [[f"[`{c['name']}`](#{c['name']})", cell(c["summary"])] for c in program["commands"]],
    )
    text += "\n## Options of every command\n\nThey stand before or after the command's name.\n\n"
    text += options_table(program["options"])
    for command in program["commands"]:
        text += f"\n## {command['name']}\n\n{wrapped(sentence(command['summary']))}"
        text += f"\n```\n{command['usage']}\n```\n"
        if command["arguments"]:
            rows = [[code(a["title"]), cell(a["help"])] for a in command["arguments"]]
            text += "\n" + table(["argument", "what it is"], rows)
        if command["options"]:
            text += "\n" + options_table(command["options"])
        text += paragraphs(command["notes"])
    return text


def settings_page(program):
    text = HEAD + "\n# Settings\n\n"
    text += wrapped(
        "A setting has one name. `poll-interval` is the option `--poll-interval`, the argument `poll_interval` in "
        "Python and the variable `WEIGHTWIRE_POLL_INTERVAL`, for the command and for engines. An option overrides its "
        "variable. A duration like `1.5m` is a `float` of seconds in Python, a size like `256MiB` an `int` of bytes, "
        "and `never` is `None`."
    )
    for setting in program["settings"]:
        kind = setting["type"].replace("_", " ")
        if setting["choices"]:
            kind = " or ".join(code(choice) for choice in setting["choices"])
        commands = "all" if setting["commands"] == ["*"] else ", ".join(code(c) for c in setting["commands"])
        rows = [
            ["type", kind],
            ["default", code(setting["default"]) or "none"],
            ["option", f"{code(setting['option'])} of {commands}" if setting["option"] else "none"],
            [
                "Python",
                f"{code(setting['python_name'])} of {', '.join(code(p) for p in setting['python'])}"
                if setting["python"]
                else "none",
            ],
            ["variable", code(setting["variable"]) or "none"],
            ["engines", "yes" if setting["engine"] else "no"],
        ]
        text += f"\n## {setting['name']}\n\n{wrapped(sentence(setting['help']))}\n"
        text += table(["surface", "here"], rows)
        if setting["note"]:
            text += "\n" + wrapped(sentence(setting["note"]))
    text += "\n## Other variables\n\n"
    text += table(["variable", "meaning"], [[code(o["variable"]), cell(o["help"])] for o in program["other_variables"]])
    text += "\nA variable that begins with `WEIGHTWIRE_` and is not on this page causes a warning.\n"
    text += "\n## Errors\n\n"
    text += wrapped(
        "Exit statuses of commands, `code` of JSON errors and exceptions of Python. A program that supervises a "
        "command tries again after those that are marked, and treats others, also unknown ones, as failures."
    )
    rows = [
        [
            str(e["exit_code"]),
            code(e["code"]),
            code(e["exception"]),
            "yes" if e["retryable"] else "no",
            cell(e["meaning"]),
        ]
        for e in program["errors"]
    ]
    text += "\n" + table(["exit status", "code", "exception", "try again", "meaning"], rows)
    text += "\nExit status 0 is success, and 128 + N a command that signal N ended.\n"
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build/weightwire"))
    parser.add_argument("--out", type=Path, default=ROOT / "docs/reference")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page differs")
    arguments = parser.parse_args()
    program = described(arguments.program)
    different = []
    for name, text in (("commands.md", commands_page(program)), ("settings.md", settings_page(program))):
        path = arguments.out / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        different.append(str(path))
        if not arguments.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if arguments.check and different:
        sys.exit(f"{', '.join(different)}: not what the program says; run ./dev reference")


if __name__ == "__main__":
    main()
