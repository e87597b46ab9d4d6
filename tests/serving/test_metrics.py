"""Counts in Prometheus' text format, beside what was counted by hand."""

import threading

from meshcap.serving.metrics import Counter, Gauge, Histogram, Metrics


def test_counters() -> None:
    counter = Counter("seen_total", "What was seen.", ("what", "how"))
    counter.add("dog", "well")
    counter.add("dog", "well", count=2)
    counter.add('a "cat"\\', "so\nso")
    assert counter.lines() == [
        r'seen_total{what="a \"cat\"\\",how="so\nso"} 1',
        'seen_total{what="dog",how="well"} 3',
    ]
    assert Counter("plain_total", "").lines() == ["plain_total 0"]  # known before it is first counted


def test_histograms_are_cumulative_and_their_ends_belong_to_them() -> None:
    histogram = Histogram("seconds", "", (0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 1.0, 7.0):
        histogram.observe(value)
    assert histogram.lines() == [
        'seconds_bucket{le="0.1"} 2', 'seconds_bucket{le="1"} 4', 'seconds_bucket{le="+Inf"} 5',
        "seconds_sum 8.65", "seconds_count 5",
    ]  # fmt: skip


def test_nothing_is_lost_between_threads() -> None:
    metrics = Metrics(lambda: 3)

    def count() -> None:
        for _ in range(2000):
            metrics.requests.add("/", "200")
            metrics.seconds.observe(0.2)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    text = metrics.text()
    assert 'meshcap_requests_total{path="/",status="200"} 8000\n' in text
    assert "meshcap_caption_seconds_count 8000\n" in text and "meshcap_pictures_in_flight 3\n" in text


def test_every_family_is_announced_once() -> None:
    lines = Metrics(lambda: 0).text().splitlines()
    announced = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(announced) == len(set(announced)) == 7
    for line in lines:
        if not line.startswith("#"):
            name = line.partition("{")[0].partition(" ")[0]
            assert any(name.startswith(one) for one in announced)
    assert Gauge("x", "", lambda: 2.5).lines() == ["x 2.5"]
