"""A cache of bytes that never holds more than it may."""

from __future__ import annotations

from schedulemesh.runtime.agents.user_code import BlobCache


def test_the_least_recently_used_entry_is_evicted_first():
    cache = BlobCache(10)
    for key in "abc":
        cache.put(key, b"1234")
    assert [cache.get(key) for key in "abc"] == [None, b"1234", b"1234"]
    cache.get("b")
    cache.put("d", b"1234")
    assert [cache.get(key) for key in "bcd"] == [b"1234", None, b"1234"]


def test_storing_the_same_bytes_again_takes_no_more_space():
    cache = BlobCache(10)
    cache.put("a", b"1234")
    for _ in range(10):
        cache.put("b", b"123456")
    assert (cache.get("a"), cache.get("b")) == (b"1234", b"123456")


def test_what_is_larger_than_all_may_be_is_not_kept():
    cache = BlobCache(10)
    cache.put("a", b"1234")
    cache.put("a", b"12345678901")
    assert cache.get("a") is None
    cache.put("b", b"1234567890")
    assert cache.get("b") == b"1234567890"
    assert cache.get(None) is None
