"""The page behind a proxy: below a path, and with users whom the proxy names."""

from __future__ import annotations

import re

import httpx
import pytest

from schedulemesh.config.http import HttpSettings, parse_http
from schedulemesh.errors import InvalidRequestError
from schedulemesh.server.guard import address_of
from tests.server.local import Api
from tests.server.scenes import three_teams
from tests.server.test_page import Browser

BASE = "/schedulemesh"
USER = "X-Forwarded-User"


@pytest.fixture
def served(mesh, tmp_path):
    """Makes servers with settings of proxies."""
    apis = []

    def made(**settings):
        apis.append(Api(mesh, tmp_path / f"home-{len(apis)}", **settings))
        return apis[-1]

    yield made
    for api in apis:
        api.close()


@pytest.fixture
def behind(served):
    """A server that believes the proxy at the address of this test."""
    return served(base_path=BASE, proxies=("127.0.0.1",))


@pytest.fixture
def user(behind):
    """Sends requests as the proxy does for user lin, who has a token."""
    body = {"name": "user:lin", "role": "submitter", "owner": "lin"}
    behind.send("POST", "/tokens", body)
    with httpx.Client(base_url=behind.url, headers={USER: "lin"}, trust_env=False) as client:
        yield client


# -- below a path ---------------------------------------------------------------------------------------


def test_every_address_of_a_page_has_the_path(mesh, behind):
    three_teams(mesh)
    browser = Browser(behind)
    browser.sign_in()
    for path in ("/", "/queue", "/task?id=segment", "/nodes", "/timeline", "/policy", "/audit"):
        text = browser.client.get(BASE + path).text
        addresses = re.findall(r'\s(?:href|src|action|data-live)="([^"]*)"', text)
        assert addresses
        assert not [one for one in addresses if one[0] != "#" and not one.startswith(f"{BASE}/")]
    for address in set(re.findall(r'(?:href|src)="([^"]*\.(?:css|svg|js))"', text)):
        assert browser.client.get(address).status_code == 200
    browser.client.close()


def test_signing_in_and_changing_lead_to_addresses_with_the_path(mesh, behind):
    three_teams(mesh)
    browser = Browser(behind)
    form = {"token": behind.token, "next": "/queue"}
    answer = browser.client.post(f"{BASE}/sign-in", data=form, headers={"origin": behind.url})
    assert answer.headers["location"] == f"{BASE}/queue"
    assert f"Path={BASE};" in answer.headers["set-cookie"]
    answer = browser.client.post(f"{BASE}/sign-out", headers={"origin": behind.url})
    assert answer.headers["location"] == f"{BASE}/sign-in"
    browser.client.close()


@pytest.mark.parametrize("path", [BASE, f"{BASE}/", f"{BASE}/queue", "/queue"])
def test_proxies_may_take_the_path_off_or_leave_it(user, path):
    assert user.get(path).status_code == 200


@pytest.mark.parametrize("path", [f"{BASE}x", f"{BASE}{BASE}", f"{BASE}//queue"])
def test_other_paths_are_none_of_the_page(user, path):
    assert user.get(path).status_code == 404


def test_calls_and_their_limits_are_below_the_path_too(behind):
    assert behind.client.get(f"{BASE}/api/v1/status").status_code == 200
    assert httpx.get(f"{behind.url}{BASE}/api/v1/status", trust_env=False).status_code == 401
    assert httpx.get(f"{behind.url}{BASE}/healthz", trust_env=False).status_code == 200


# -- users of a proxy -----------------------------------------------------------------------------------


def test_the_user_of_a_trusted_proxy_is_who_looks_and_acts(mesh, behind, user):
    three_teams(mesh)
    page = user.get("/queue")
    assert "user:lin (submitter)" in page.text
    assert "Sign out" not in page.text
    form = {"do": "release", "id": "ablation-2", "form": "f"}
    answer = user.post("/change", data=form, headers={"origin": behind.url})
    assert answer.status_code == 200
    changes = behind.get("/audit")["items"]
    assert [c["token"] for c in changes if c["call"] == "change_queued_task"][-1] == "user:lin"


def test_a_user_whose_name_only_begins_like_anothers_is_somebody_else(behind):
    """Names as long as a directory service allows; none is cut off."""
    name = "n" * 200
    behind.send("POST", "/tokens", {"name": f"user:{name}", "role": "operator"})
    for user, status in ((name, 200), (f"{name}x", 403), (f"{name} x", 403)):
        answer = httpx.get(f"{behind.url}{BASE}/queue", headers={USER: user}, trust_env=False)
        assert answer.status_code == status, user


@pytest.mark.parametrize("origin", [None, "http://evil.example"])
def test_forms_of_other_sites_do_nothing_in_the_name_of_a_user(mesh, behind, user, origin):
    three_teams(mesh)
    form = {"do": "cancel", "id": "ablation-2", "form": "f"}
    headers = {} if origin is None else {"origin": origin}
    assert user.post("/change", data=form, headers=headers).status_code == 403
    assert behind.get("/tasks/ablation-2")["state"] == "queued"


def test_the_header_means_nothing_where_no_proxy_is_trusted(mesh, served):
    for proxies in ((), ("10.0.0.5",)):
        api = served(proxies=proxies)
        api.send("POST", "/tokens", {"name": f"user:lin{len(proxies)}", "role": "operator"})
        answer = httpx.get(api.url, headers={USER: f"lin{len(proxies)}"}, trust_env=False)
        assert answer.status_code == 401


@pytest.mark.parametrize("name", ["local", "ci", "user:lin", "LIN", "eve"])
def test_users_without_a_token_of_their_own_are_told_so(behind, user, name):
    behind.send("POST", "/tokens", {"name": "ci", "role": "operator"})
    answer = user.get("/", headers={USER: name})
    assert answer.status_code == 403
    assert "there is no valid token for user" in answer.text


def test_a_user_that_is_named_twice_is_nobody(user):
    answer = user.get("/", headers=[(USER, "lin"), (USER, "eve")])
    assert answer.status_code == 400


def test_a_user_whose_token_is_revoked_sees_nothing_more(behind, user):
    assert user.get("/").status_code == 200
    with user.stream("GET", "/live") as stream:
        assert stream.status_code == 200
    behind.send("DELETE", "/tokens/user:lin")
    assert user.get("/").status_code == 403
    assert user.get("/live").status_code == 403


def test_the_header_is_no_token_for_calls(user):
    assert user.get("/api/v1/status").status_code == 401


def test_who_sends_no_header_signs_in_as_without_a_proxy(behind):
    assert httpx.get(behind.url, trust_env=False).status_code == 401


# -- settings -------------------------------------------------------------------------------------------


def test_proxies_are_set_beside_the_address():
    settings = parse_http(
        {"address": "0.0.0.0:9000", "base_path": "/a/b-c", "proxies": ["10.0.0.5", "::1"]}, {}
    )
    assert (settings.host, settings.port) == ("0.0.0.0", 9000)
    assert (settings.base_path, settings.proxies) == ("/a/b-c", ("10.0.0.5", "::1"))
    assert parse_http({}, {}).port == HttpSettings().port


@pytest.mark.parametrize(
    "value",
    [
        {"base_path": "a"},
        {"base_path": "/a/"},
        {"base_path": "/"},
        {"base_path": '/"x'},
        {"base_path": "/a/../b"},
        {"base_path": "//evil"},
        {"base_path": 5},
        {"proxies": ["proxy.example"]},
        {"proxies": "10.0.0.5"},
        {"proxies": [["10.0.0.5"]]},
        {"proxy": ["10.0.0.5"]},
        {"address": "nowhere"},
    ],
)
def test_settings_of_proxies_that_cannot_be_are_refused(value):
    with pytest.raises(InvalidRequestError):
        parse_http(value, {})


@pytest.mark.parametrize(
    ("client", "address"),
    [
        (("10.0.0.5", 1), "10.0.0.5"),
        (("::ffff:10.0.0.5", 1), "10.0.0.5"),
        (("::ffff:0:5", 1), "::ffff:0:5"),
        (("fe80::1%eth0.5", 1), "fe80::1%eth0.5"),
        (("::1", 1), "::1"),
        (None, ""),
    ],
)
def test_a_proxy_is_known_by_its_address_whatever_the_server_listens_at(client, address):
    """A server at ``::`` is told the addresses of IPv4 as those of IPv6."""
    assert address_of({"client": client}) == address
