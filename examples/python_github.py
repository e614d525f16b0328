"""PyGithub through Sluice: pip install PyGithub, then SLUICE_KEY=slc_… python python_github.py acme/shop

PyGithub follows the addresses that it finds in responses, and only those of its own server. So it keeps GitHub's address, and each
request is sent through Sluice as it leaves.
"""

import os
import sys
from urllib.parse import quote

from github import Auth, Github
from github.Requester import HTTPRequestsConnectionClass, HTTPSRequestsConnectionClass, Requester
from requests.adapters import HTTPAdapter

sluice = os.environ.get("SLUICE_URL", "http://localhost:8080")


class ThroughSluice(HTTPAdapter):
    def send(self, request, **options):
        request.url = f"{sluice}/proxy?target={quote(request.url, safe='')}"
        return super().send(request, **options)


def through_sluice(kind):
    class Connection(kind):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            for scheme in ("http://", "https://"):
                self.session.mount(scheme, ThroughSluice())

    return Connection


Requester.injectConnectionClasses(
    through_sluice(HTTPRequestsConnectionClass), through_sluice(HTTPSRequestsConnectionClass)
)
github = Github(
    auth=Auth.Token(os.environ["SLUICE_KEY"]),  # a key of Sluice; the real one stays in Sluice's configuration
    base_url=os.environ.get("GITHUB_API", "https://api.github.com"),
    timeout=120,
    retry=None,  # Sluice waits and repeats
)

for issue in github.get_repo(sys.argv[1]).get_issues():
    print(issue.number, issue.title, f"({issue.user.name})")
