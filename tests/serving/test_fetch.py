"""Pictures by URL. The resolver is always a fake one, and every connection ends at this machine."""

import ipaddress
import socket
import threading
from collections.abc import Callable
from contextlib import closing

import pytest

from meshcap.serving import fetch
from meshcap.serving.fetch import Fetcher, is_public
from meshcap.serving.limits import RefusalError

PUBLIC, OTHER = "93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c"
PRIVATE = [
    "127.0.0.1", "127.255.255.254", "0.0.0.0", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1",
    "169.254.169.254", "100.64.0.1", "192.0.0.1", "192.0.2.1", "198.18.0.1", "203.0.113.9", "224.0.0.1", "240.0.0.1",
    "255.255.255.255", "::", "::1", "fe80::1", "fc00::1", "fd12:3456::1", "fec0::1", "ff02::1", "2001:db8::1",
    "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::", "2002:c0a8:101::1", "100::1",
]  # fmt: skip


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", [PUBLIC, OTHER, "1.1.1.1", "172.32.0.1", "::ffff:1.1.1.1", "64:ff9b::101:101"])
def test_public_addresses(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


class Host:
    """A host of this machine that says the same to everybody, and remembers what it was asked."""

    def __init__(self, *answers: bytes, stay: threading.Event | None = None):
        self.answers, self.asked, self.reached, self.stay = list(answers), [], [], stay

    def connect(self, address: str, port: int, timeout: float) -> socket.socket:
        """In place of the real one: notes where it should have gone."""
        self.reached.append((address, port))
        here, there = socket.socketpair()
        here.settimeout(timeout)
        threading.Thread(target=self._answer, args=(there, self.answers[len(self.reached) - 1]), daemon=True).start()
        return here

    def _answer(self, line: socket.socket, answer: bytes) -> None:
        with closing(line):
            asked = b""
            while b"\r\n\r\n" not in asked:
                if not (more := line.recv(4096)):
                    return
                asked += more
            self.asked.append(asked)
            line.sendall(answer)
            while self.stay is not None and not self.stay.wait(0.05):  # a byte now and then
                try:
                    line.sendall(b"x")
                except OSError:
                    return


def ok(content: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(content), content)


def moved(to: str) -> bytes:
    return b"HTTP/1.1 302 CaptionedPicture\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % to.encode()


def names(**known: list[str]) -> Callable[[str, int], list[str]]:
    def resolve(host: str, port: int) -> list[str]:
        try:
            return known[host.partition(".")[0]]
        except KeyError:
            raise socket.gaierror(socket.EAI_NONAME, "unknown") from None

    return resolve


def refused(fetcher: Fetcher, url: str) -> RefusalError:
    with pytest.raises(RefusalError) as error:
        fetcher(url)
    return error.value


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("a test reached for the network")

    monkeypatch.setattr(socket, "getaddrinfo", never)
    monkeypatch.setattr(socket, "create_connection", never)


def test_what_is_at_a_url() -> None:
    host = Host(ok(b"a picture"))
    fetcher = Fetcher(1000, resolve=names(www=[PUBLIC]), connect=host.connect)
    assert fetcher("http://www.example.org/a.jpg?size=2#part") == b"a picture"
    assert host.reached == [(PUBLIC, 80)]
    [asked] = host.asked
    assert asked.startswith(b"GET /a.jpg?size=2 HTTP/1.1\r\nHost: www.example.org\r\n")


def test_the_connection_goes_to_the_address_that_was_checked() -> None:
    """A name that is public when it is checked and private a moment later."""
    host, answers = Host(ok(b"fine")), [[PUBLIC], ["127.0.0.1"], ["127.0.0.1"]]
    fetcher = Fetcher(1000, resolve=lambda name, port: answers.pop(0), connect=host.connect)
    assert fetcher("http://rebinding.example/") == b"fine"
    assert host.reached == [(PUBLIC, 80)] and len(answers) == 2


@pytest.mark.parametrize("address", PRIVATE)
def test_names_of_private_addresses(address: str) -> None:
    host = Host()
    for found in ([address], [PUBLIC, address], [address, PUBLIC]):  # one is enough to say no
        error = refused(Fetcher(1000, resolve=names(inside=found), connect=host.connect), "http://inside.example/")
        assert error.status == 422 and "not of a public address" in str(error) and address not in str(error)
    assert host.reached == []


@pytest.mark.parametrize("url", ["http://127.0.0.1/", "http://[::1]/", "http://2130706433/", "https://0x7f.1/"])
def test_addresses_in_a_url(url: str) -> None:
    host = Host()
    local = Fetcher(1000, resolve=lambda name, port: ["::1" if ":" in name else "127.0.0.1"], connect=host.connect)
    assert "not of a public address" in str(refused(local, url)) and host.reached == []


def test_redirects_are_checked_like_any_url() -> None:
    known = names(www=[PUBLIC], inside=["10.0.0.1"], cdn=[OTHER])
    host = Host(moved("http://inside.example/secret"))
    assert "not of a public" in str(refused(Fetcher(99, resolve=known, connect=host.connect), "http://www.example/"))
    assert host.reached == [(PUBLIC, 80)]
    for to, told in (("file:///etc/passwd", "none of the web"), ("http://www.example:22/", "a port or a password")):
        host = Host(moved(to))
        assert told in str(refused(Fetcher(99, resolve=known, connect=host.connect), "http://www.example/"))
        assert len(host.reached) == 1
    host = Host(moved("/b"), moved("http://cdn.example/c"), ok(b"found"))
    assert Fetcher(99, resolve=known, connect=host.connect)("http://www.example/a") == b"found"
    assert host.reached == [(PUBLIC, 80), (PUBLIC, 80), (OTHER, 80)]
    assert [asked.split()[1] for asked in host.asked] == [b"/a", b"/b", b"/c"]
    host = Host(*[moved("/again")] * 9)
    assert "more than 3 others" in str(refused(Fetcher(99, resolve=known, connect=host.connect), "http://www.example/"))
    assert len(host.reached) == 4


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("ftp://www.example/a", "none of the web"), ("file:///etc/passwd", "none of the web"), ("a.jpg", "none of the"),
        ("http:///a", "none of the web"), ("http://www.example:8080/", "a port"),
        ("http://me:pw@www.example/", "password"), ("http://www.example/a b", "%-encoded"),
        ("http://www.example/a\r\nX: y", "%-encoded"),
        ("http://www.example/ä", "%-encoded"), ("http://unknown.example/", "gaierror"), ("http://[::1/", "ValueError"),
        ("http://www.example:99999/", "ValueError"),
    ],
)  # fmt: skip
def test_urls_that_are_not_allowed(url: str, told: str) -> None:
    host = Host()
    error = refused(Fetcher(99, resolve=names(www=[PUBLIC]), connect=host.connect), url)
    assert error.status == 422 and told in str(error) and host.reached == []


@pytest.mark.parametrize(
    ("answer", "status", "told"),
    [
        (b"HTTP/1.1 404 Not CaptionedPicture\r\nContent-Length: 0\r\n\r\n", 422, "status 404"),
        (ok(b"x" * 101), 413, "more than 100 bytes"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 101, 413, "more than 100 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort", 422, "less than it promised"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", 422, "IncompleteRead"),
        (b"nonsense\r\n\r\n", 422, "BadStatusLine"),
        (b"", 422, "RemoteDisconnected"),
        (b"HTTP/1.1 302 CaptionedPicture\r\nContent-Length: 0\r\n\r\n", 422, "more than 3 others"),
    ],
)
def test_hosts_that_give_no_picture(answer: bytes, status: int, told: str) -> None:
    host = Host(*[answer] * 4)
    error = refused(Fetcher(100, resolve=names(www=[PUBLIC]), connect=host.connect), "http://www.example/")
    assert error.status == status and told in str(error)


@pytest.mark.parametrize("start", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nX-Slow: "])
def test_a_host_that_drips_is_cut_off(start: bytes) -> None:
    stop = threading.Event()
    host = Host(start, stay=stop)
    fetcher = Fetcher(10**6, seconds=0.4, resolve=names(www=[PUBLIC]), connect=host.connect)
    assert "took more than 0.4 s" in str(refused(fetcher, "http://www.example/"))
    stop.set()


def test_the_next_address_where_one_does_not_answer() -> None:
    host = Host(ok(b"found"))

    def connect(address: str, port: int, timeout: float) -> socket.socket:
        if address == OTHER:
            raise ConnectionRefusedError
        return host.connect(address, port, timeout)

    assert Fetcher(99, resolve=names(www=[OTHER, PUBLIC]), connect=connect)("http://www.example/") == b"found"
    error = refused(Fetcher(99, resolve=names(www=[OTHER]), connect=connect), "http://www.example/")
    assert "ConnectionRefusedError" in str(error)


def test_https_means_it() -> None:
    """A host that does not speak TLS is not spoken to without it."""
    host = Host(ok(b"secret"))
    fetcher = Fetcher(99, seconds=1, resolve=names(www=[PUBLIC]), connect=host.connect)
    assert refused(fetcher, "https://www.example/").status == 422
    assert host.reached == [(PUBLIC, 443)] and host.asked == []


def test_the_real_resolver_and_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every address that the system knows is asked for, and the connection is made to an address, not to a name."""
    found = [(socket.AF_INET, 1, 6, "", (PUBLIC, 80)), (socket.AF_INET6, 1, 6, "", (OTHER, 80, 0, 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *given, **kind: found)
    assert fetch.resolve("www.example", 80) == [PUBLIC, OTHER]
    asked = []
    monkeypatch.setattr(socket, "create_connection", lambda *given: asked.append(given))
    fetch.connect(PUBLIC, 80, 2.0)
    assert asked == [((PUBLIC, 80), 2.0)]


@pytest.mark.parametrize("address", ["192.0.0.1", "192.0.0.170", "192.88.99.1", "198.18.0.1", "100.64.0.1"])
def test_addresses_for_special_purposes_are_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))
    assert not is_public(ipaddress.ip_address(f"::ffff:{address}"))
