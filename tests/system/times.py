"""Times of many rounds, for people."""


def percentile(seconds, percent):
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def shown(seconds):
    """The middle, the tail and the worst, in milliseconds."""
    p50, p99 = percentile(seconds, 50), percentile(seconds, 99)
    return f"p50 {1000 * p50:.1f} ms, p99 {1000 * p99:.1f} ms, max {1000 * max(seconds):.1f} ms, of {len(seconds)}"
