"""C++ as a compiler takes it: whether two texts differ in more than comments."""

import re

# A string, a character (no digit separator), a comment to the line's end, one between marks.
TOKEN = re.compile(r'R"([^()\\ ]{0,16})\((?:.|\n)*?\)\1"|"(?:\\.|[^"\\\n])*"|'
                   r"(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'|//[^\n]*|/\*(?:.|\n)*?\*/")


def code_of(text, read=None):
    """The text without comments, and without blanks: a comment breaks lines. `read` is a pattern of
    what stays in a comment."""
    def kept(token):
        if not token[0].startswith(("//", "/*")):
            return token[0]
        found = read.search(token[0]) if read else None
        return found[0] if found else ""
    return "".join(TOKEN.sub(kept, text).split())
