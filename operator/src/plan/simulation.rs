//! A small model of a cluster, driven by the plan: whole rolls, and rolls that are disturbed in any order.
//!
//! The model moves one second at a time. It knows what the plan does not: which rooms there really are.

mod world;

use proptest::prelude::*;

use super::fixture::policy;
use super::{Policy, UpgradeMode};
use world::{Image, World};

/// Longer than any roll of the model takes; what has not ended by then never will.
const MAX_SECS: u32 = 4_000;

fn rolled(policy: Policy, rooms_per_pod: u32) -> World {
    let mut world = World::new(policy);
    world.run_until_settled(MAX_SECS);
    world.open_rooms(rooms_per_pod);
    world.set_template("v2", Image::Good);
    world.run_until_settled(MAX_SECS);
    world
}

#[test]
fn a_roll_ends_and_moves_each_room_once_straight_to_the_target() {
    for replicas in [1, 2, 3, 7] {
        let world = rolled(policy(replicas), 40);
        assert_eq!(world.max_moves(), 1, "{replicas} replicas");
        assert!(world.all_rooms_on("v2"));
        assert_eq!(world.most_pods(), replicas + 1);
    }
}

#[test]
fn with_a_wider_surge_and_budget_pods_drain_side_by_side_within_the_rooms_budget() {
    let wide = Policy { max_surge: 3, max_unavailable: 1, max_draining_rooms: 90, ..policy(6) };
    let world = rolled(wide, 40);
    assert_eq!(world.max_moves(), 1);
    assert!(world.most_draining() > 1);
    assert!(world.most_moving() <= 90, "{} rooms were on the move", world.most_moving());
}

#[test]
fn a_bad_image_costs_the_surge_pod_and_its_correction_rolls_by_itself() {
    for image in [Image::Unpullable, Image::Crashing] {
        let mut world = World::new(policy(3));
        world.run_until_settled(MAX_SECS);
        world.open_rooms(20);
        world.set_template("v2", image);
        world.run_secs(300);
        assert_eq!((world.available(), world.live()), (3, 4), "{image:?}");
        assert_eq!(world.max_moves(), 0);
        world.set_template("v3", Image::Good);
        world.run_until_settled(MAX_SECS);
        assert_eq!(world.max_moves(), 1);
        assert!(world.all_rooms_on("v3"));
    }
}

#[test]
fn a_roll_back_in_mid_roll_ends_where_it_began() {
    let mut world = World::new(policy(4));
    world.run_until_settled(MAX_SECS);
    world.open_rooms(30);
    world.set_template("v2", Image::Good);
    world.run_secs(40);
    world.set_template("v1", Image::Good);
    world.run_until_settled(MAX_SECS);
    assert!(world.all_rooms_on("v1"));
    assert!(world.max_moves() <= 2, "once there and once back");
}

#[test]
fn scaling_to_zero_ends_every_pod_without_cutting_a_room() {
    let mut world = World::new(policy(3));
    world.run_until_settled(MAX_SECS);
    world.open_rooms(10);
    world.scale(0);
    world.run_until_settled(MAX_SECS);
    assert_eq!(world.live(), 0);
}

#[test]
fn a_database_that_is_away_stops_the_roll_and_its_return_lets_it_go_on() {
    let mut world = World::new(policy(3));
    world.run_until_settled(MAX_SECS);
    world.open_rooms(10);
    world.set_template("v2", Image::Good);
    world.set_store(false);
    world.run_secs(200);
    assert!(world.live() >= 4, "no pod is ended on a count that nobody can confirm");
    world.set_store(true);
    world.run_until_settled(MAX_SECS);
    assert!(world.all_rooms_on("v2"));
}

/// Something that happens to a cluster.
#[derive(Clone, Copy, Debug)]
enum Disturbance {
    Template(usize, bool),
    Scale(u32),
    Cordon(usize),
    Uncordon,
    Crash(usize),
    Delete(usize),
    Pause(bool),
    Store(bool),
    Unreachable(usize),
}

fn disturbance() -> impl Strategy<Value = Disturbance> {
    prop_oneof![
        3 => (0..4_usize, any::<bool>()).prop_map(|(revision, good)| Disturbance::Template(revision, good)),
        2 => (0..5_u32).prop_map(Disturbance::Scale),
        1 => (0..3_usize).prop_map(Disturbance::Cordon),
        1 => Just(Disturbance::Uncordon),
        2 => (0..8_usize).prop_map(Disturbance::Crash),
        1 => (0..8_usize).prop_map(Disturbance::Delete),
        1 => any::<bool>().prop_map(Disturbance::Pause),
        1 => any::<bool>().prop_map(Disturbance::Store),
        1 => (0..8_usize).prop_map(Disturbance::Unreachable),
    ]
}

fn disturb(world: &mut World, what: Disturbance) {
    match what {
        Disturbance::Template(revision, good) => {
            let image = if good { Image::Good } else { Image::Crashing };
            world.set_template(["v1", "v2", "v3", "v4"][revision], image);
        }
        Disturbance::Scale(replicas) => world.scale(replicas),
        Disturbance::Cordon(host) => world.cordon(host),
        Disturbance::Uncordon => world.uncordon(),
        Disturbance::Crash(nth) => world.crash(nth),
        Disturbance::Delete(nth) => world.delete(nth),
        Disturbance::Pause(pause) => {
            world.set_mode(if pause { UpgradeMode::Paused } else { UpgradeMode::Rolling });
        }
        Disturbance::Store(reachable) => world.set_store(reachable),
        Disturbance::Unreachable(nth) => world.cut_off(nth),
    }
}

proptest! {
    /// [`World`] checks at every step that no pod with rooms is ended, that the surge is kept, and that no
    /// drain takes an available pod below the budget; here it must also come to rest afterwards.
    #[test]
    fn whatever_happens_in_whatever_order_no_room_is_cut_no_budget_broken_and_the_roll_ends(
        replicas in 1..5_u32,
        (max_surge, max_unavailable) in (0..3_u32, 0..3_u32).prop_filter("one must be above zero", |(s, u)| s + u > 0),
        rooms in 0..30_u32,
        max_draining_rooms in 1..60_u64,
        events in proptest::collection::vec((1..60_u32, disturbance()), 0..12),
    ) {
        let policy = Policy { max_surge, max_unavailable, max_draining_rooms, ..policy(replicas) };
        let mut world = World::new(policy);
        world.run_until_settled(MAX_SECS);
        world.open_rooms(rooms);
        for (secs, what) in events {
            world.run_secs(secs);
            disturb(&mut world, what);
        }
        world.calm_down();
        world.set_template("v9", Image::Good);
        world.run_until_settled(MAX_SECS);
        prop_assert!(world.all_rooms_on("v9") || world.live() == 0);
    }
}
