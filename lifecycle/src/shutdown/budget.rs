//! How the time that is left is shared among the phases that are left. Pure.

use std::time::Duration;

/// What the first of the phases with these budgets gets of the time that is left: its whole budget if there is
/// enough for all of them, otherwise its proportion.
pub(super) fn allot(budgets: &[Duration], left: Duration) -> Duration {
    let Some(first) = budgets.first() else { return Duration::ZERO };
    let wanted: Duration = budgets.iter().sum();
    if wanted <= left || wanted.is_zero() {
        return (*first).min(left);
    }
    left.mul_f64(first.as_secs_f64() / wanted.as_secs_f64()).min(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: &[u64]) -> Vec<Duration> {
        seconds.iter().copied().map(Duration::from_secs).collect()
    }

    #[test]
    fn with_time_enough_each_phase_gets_its_budget() {
        assert_eq!(allot(&seconds(&[20, 8, 2]), Duration::from_secs(30)), Duration::from_secs(20));
        assert_eq!(allot(&seconds(&[2]), Duration::from_secs(30)), Duration::from_secs(2));
    }

    #[test]
    fn with_too_little_each_phase_gets_its_proportion() {
        assert_eq!(allot(&seconds(&[20, 10, 10]), Duration::from_secs(20)), Duration::from_secs(10));
    }

    #[test]
    fn if_every_phase_overruns_the_total_is_kept_and_none_is_starved() {
        let budgets = seconds(&[20, 10, 10, 5, 1]);
        let mut left = Duration::from_secs(30);
        for at in 0..budgets.len() {
            let got = allot(&budgets[at..], left);
            let fair = budgets[at].mul_f64(30.0 / 46.0);
            assert!(got.abs_diff(fair) < Duration::from_millis(1), "phase {at} got {got:?} of {fair:?}");
            left -= got;
        }
    }

    #[test]
    fn no_time_and_no_phases_are_no_panic() {
        assert_eq!(allot(&seconds(&[3]), Duration::ZERO), Duration::ZERO);
        assert_eq!(allot(&seconds(&[0, 0]), Duration::from_secs(1)), Duration::ZERO);
        assert_eq!(allot(&[], Duration::from_secs(1)), Duration::ZERO);
    }
}
