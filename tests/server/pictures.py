"""Draw the pictures of the page in docs/pictures anew: ``python -m tests.server.pictures`` (needs Chromium).

They show the scheduler of three teams that the tests of the page look at, and one with a past week, in both
languages.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.runtime.composition import InThread
from tests.server.local import Api
from tests.server.past_week import past_week
from tests.server.scenes import three_teams

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
#: Of each picture: its path on the server and its height.
SCREENS = {
    "page": ("/", 760),
    "page_task": ("/task?id=ablation-1", 940),
    "page_nodes": ("/nodes", 620),
    "page_change": ("/change?do=priority&id=ablation-1&priority=1000", 620),
}
#: The same of the scheduler with a past week.
WEEK = {"page_timeline": ("/timeline?span=7d&by=pool", 760)}
LANGUAGES = {"": "en", "_zh": "zh"}
_WIDTH = 1280


def main() -> None:
    """Write every picture."""
    browser = shutil.which("chromium")
    if browser is None:
        sys.exit("there is no Chromium here (Debian: apt-get install chromium)")
    with TemporaryDirectory() as name:
        for picture, page, height in saved_pages(Path(name)):
            draw(browser, page, PICTURES / f"{picture}.png", height)


def saved_pages(folder):
    """The pages, as files that a browser shows without a server."""
    mesh = InThread(folder / "journal.sqlite")
    three_teams(mesh)
    time.sleep(2)  # so that pages show times of more than nothing
    yield from pages_of(mesh, folder, SCREENS)
    journal = folder / "week" / "space" / "mesh.sqlite"
    journal.parent.mkdir(parents=True)
    past_week(journal)
    yield from pages_of(InThread(journal, state_path=str(folder / "week")), folder, WEEK)


def pages_of(mesh, folder, screens):
    """The pages of one scheduler, which ends with them."""
    api = Api(mesh, folder / f"home-{len(screens)}")
    client = api.client_with(None)
    client.post("/sign-in", data={"token": api.token}, headers={"origin": api.url})
    try:
        for suffix, language in LANGUAGES.items():
            for screen, (path, height) in screens.items():
                text = client.get(path, headers={"accept-language": language}).text
                page = folder / f"{screen}{suffix}.html"
                page.write_text(with_files(text, client, folder), encoding="utf-8")
                yield f"{screen}{suffix}", page, height
    finally:
        client.close()
        api.close()
        mesh.close()


def with_files(text, client, folder):
    """A page whose style and icon lie beside it, and which has no script."""
    for path in set(re.findall(r'href="(/[^"]+\.(?:css|svg))"', text)):
        file = folder / path.replace("/", "_")
        file.write_bytes(client.get(path).content)
        text = text.replace(path, file.name)
    return re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)


def draw(browser, page, picture, height):
    """A picture of a page as the browser shows it."""
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--window-size={_WIDTH},{height}", f"--screenshot={picture}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


if __name__ == "__main__":
    main()
