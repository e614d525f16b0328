"""Judges recorded responses with httplint, each together with its request.

Reads a JSON object a line (name, method, target, fields, response in base64, at in seconds since 1970) and writes one a line: the
name, and what was marked bad and warned of. Owns no judgement of its own.
"""

import base64
import json
import sys
from argparse import Namespace

from httplint import HttpRequestLinter, levels
from httplint.cli.http_parser import HttpCliParser, modes


class Judge(HttpCliParser):
    """httplint's own reader of bytes, which here knows the request: responses to HEAD have no content."""

    def __init__(self, recorded):
        super().__init__(Namespace(mode=modes.RESPONSE), recorded["at"])
        self.recorded = recorded
        self.bad = []
        self.warned = []
        self.isOver = False

    def input_start(self, top_line, *rest):
        has_content, is_final = super().input_start(top_line, *rest)
        request = HttpRequestLinter(start_time=self.start_time)
        method = self.recorded["method"]
        target = "http://gateway.example" + self.recorded["target"]
        request.process_request_topline(method.encode(), target.encode(), b"1.1")
        request.process_headers(
            [(name.encode(), value.encode()) for name, value in self.recorded["fields"]]
        )
        request.finish_content(True)
        self.linter.request = request
        self.linter.is_head_response = method == "HEAD"
        return has_content and method != "HEAD", is_final

    def input_end(self, trailers):
        self.linter.finish_content(True, trailers)
        for note in self.linter.notes:
            for one in [note, *note.subnotes]:
                if one.level == levels.BAD:
                    self.bad.append(f"{one.subject}: {one.summary}")
                elif one.level == levels.WARN:
                    self.warned.append(one.summary)
        self.isOver = True

    def input_error(self, err, close=True):
        self.bad.append(f"{err.desc}: {err.detail or ''}")


for line in sys.stdin:
    recorded = json.loads(line)
    judge = Judge(recorded)
    judge.handle_input(base64.b64decode(recorded["response"]))
    if not judge.isOver:
        judge.bad.append("the response is not whole")
    print(json.dumps({"name": recorded["name"], "bad": judge.bad, "warned": judge.warned}))
