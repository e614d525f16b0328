"""The official OpenAI client through Sluice: pip install openai, then SLUICE_KEY=slc_… python python_openai.py"""

import os
import sys

from openai import OpenAI, RateLimitError

client = OpenAI(
    api_key=os.environ["SLUICE_KEY"],  # a key of Sluice; the real one stays in Sluice's configuration
    base_url=os.environ.get("SLUICE_URL", "http://localhost:8080") + "/via/openai/v1",
    timeout=120,  # the client tells Sluice, which answers before
    max_retries=0,  # Sluice waits and repeats; it refuses only what cannot be sent in time
)
question = sys.argv[1] if len(sys.argv) > 1 else "Where does water go?"

try:
    stream = client.chat.completions.create(
        model="gpt-4o",
        messages=[{"role": "user", "content": question}],
        stream=True,
    )
    for chunk in stream:
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()
except RateLimitError as error:
    # The time is true: before it, the response would be the same.
    print(f"{error.code}: try again in {error.response.headers['retry-after']} s", file=sys.stderr)
    sys.exit(75)
