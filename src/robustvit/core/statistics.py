"""Intervals for fractions of images; scipy is imported when one is asked for."""


def wilson_interval(hits: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval; unlike the normal one it is right near 0 and 1."""
    from scipy.stats import binomtest

    interval = binomtest(hits, total).proportion_ci(confidence, method="wilson")
    return (0.0 if hits == 0 else float(interval.low), 1.0 if hits == total else float(interval.high))


def upper_bound(hits: int, trials: int, confidence: float = 0.95) -> float:
    """Clopper and Pearson's one-sided bound: the largest fraction that makes so few hits 1 - confidence likely."""
    from scipy.stats import binomtest

    if hits >= trials:
        return 1.0
    return float(binomtest(hits, trials, alternative="less").proportion_ci(confidence, method="exact").high)
