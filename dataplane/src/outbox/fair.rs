//! Which tenants a claim asks, and for how many rooms of each.
//!
//! Pure. Each claim shares its rooms among at most [`MAX_APPS_PER_CLAIM`] tenants, in turn; what some do not need
//! the others get (max-min fairness over the last claim's demand). A tenant's flood thus takes what is free and
//! never the others' share, and a quiet tenant costs one index look-up per claim.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::store::AppQuota;

/// Most tenants in one claim: each costs a statement.
pub const MAX_APPS_PER_CLAIM: usize = 16;

/// The tenants, and what each needed last time.
#[derive(Debug, Default, Clone)]
pub struct Fair {
    demands: BTreeMap<Arc<str>, u32>,
    after: Option<Arc<str>>,
}

impl Fair {
    /// Takes the tenants that exist; keeps what is known of them.
    pub fn set_apps(&mut self, apps: Vec<Arc<str>>) {
        let mut demands = std::mem::take(&mut self.demands);
        self.demands = apps.into_iter().map(|app| (app.clone(), demands.remove(&app).unwrap_or(1))).collect();
    }

    /// The tenants.
    pub fn apps(&self) -> Vec<Arc<str>> {
        self.demands.keys().cloned().collect()
    }

    /// How many claims it takes until every tenant has been asked.
    pub fn turns(&self) -> usize {
        self.demands.len().div_ceil(MAX_APPS_PER_CLAIM).max(1)
    }

    /// The quotas of the next claim, of `rooms` in all; every tenant that is asked may have at least one.
    pub fn quotas(&mut self, rooms: u32) -> Vec<AppQuota> {
        let most = MAX_APPS_PER_CLAIM.min(rooms as usize);
        let later =
            self.demands.iter().filter(|(app, _)| self.after.as_ref().is_none_or(|after| *app > after));
        let earlier =
            self.demands.iter().filter(|(app, _)| self.after.as_ref().is_some_and(|after| *app <= after));
        let asked: Vec<(Arc<str>, u32)> =
            later.chain(earlier).take(most).map(|(app, demand)| (app.clone(), *demand)).collect();
        self.after = asked.last().map(|(app, _)| app.clone());
        let shares = share(&asked.iter().map(|(_, demand)| *demand).collect::<Vec<_>>(), rooms);
        asked.into_iter().zip(shares).map(|((app_code, _), rooms)| AppQuota { app_code, rooms }).collect()
    }

    /// Learns what each tenant had due: one that filled its quota may have any number.
    pub fn learn(&mut self, quotas: &[AppQuota], taken_of: impl Fn(&str) -> u32) {
        for quota in quotas {
            let taken = taken_of(&quota.app_code);
            if let Some(demand) = self.demands.get_mut(&quota.app_code) {
                *demand = if taken >= quota.rooms { u32::MAX } else { taken.saturating_add(1) };
            }
        }
    }
}

/// Max-min fair shares of `capacity`: nobody gets more than it demands unless there is some left, and nobody less
/// than an equal part if it demands that much.
fn share(demands: &[u32], capacity: u32) -> Vec<u32> {
    let mut order: Vec<usize> = (0..demands.len()).collect();
    order.sort_by_key(|at| demands[*at]);
    let mut shares = vec![0; demands.len()];
    let (mut left, mut waiting) = (capacity, u32::try_from(demands.len()).unwrap_or(u32::MAX));
    for at in order {
        // The greediest comes last and gets all that is left: an idle tenant's part is not wasted.
        let part = left / waiting.max(1);
        shares[at] = if waiting == 1 { left } else { demands[at].clamp(1, part.max(1)) };
        left -= shares[at].min(left);
        waiting -= 1;
    }
    shares
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fair(apps: &[&str]) -> Fair {
        let mut fair = Fair::default();
        fair.set_apps(apps.iter().map(|app| Arc::from(*app)).collect());
        fair
    }

    #[test]
    fn a_flood_takes_what_is_free_and_not_the_share_of_the_others() {
        assert_eq!(share(&[u32::MAX, 1, 1], 64), [62, 1, 1]);
        assert_eq!(share(&[u32::MAX, 40, 1], 64), [32, 31, 1]);
        assert_eq!(share(&[u32::MAX, u32::MAX], 64), [32, 32]);
        assert_eq!(share(&[1], 64), [64]);
    }

    #[test]
    fn a_tenant_that_filled_its_quota_gets_more_next_time() {
        let mut fair = fair(&["a", "b"]);
        let quotas = fair.quotas(64);
        fair.learn(&quotas, |app| if app == "b" { 64 } else { 0 });
        let next: Vec<u32> = fair.quotas(64).iter().map(|quota| quota.rooms).collect();
        assert_eq!(next, [1, 63]);
    }

    #[test]
    fn every_tenant_has_its_turn() {
        let names: Vec<String> = (0..50).map(|i| format!("app{i:02}")).collect();
        let mut fair = fair(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..4 {
            seen.extend(fair.quotas(64).into_iter().map(|quota| quota.app_code));
        }
        assert_eq!(seen.len(), 50);
    }

    proptest! {
        #[test]
        fn shares_fill_the_capacity_and_leave_nobody_out(
            demands in prop::collection::vec(0_u32.., 1..16), capacity in 16_u32..1000,
        ) {
            let shares = share(&demands, capacity);
            prop_assert_eq!(shares.iter().sum::<u32>(), capacity);
            prop_assert!(shares.iter().all(|share| *share >= 1));
        }

        #[test]
        fn nobody_gets_less_than_an_equal_part_that_it_demands(
            demands in prop::collection::vec(1_u32.., 1..16), capacity in 16_u32..1000,
        ) {
            let part = capacity / demands.len() as u32;
            for (demand, share) in demands.iter().zip(share(&demands, capacity)) {
                prop_assert!(share >= part.min(*demand));
            }
        }
    }
}
