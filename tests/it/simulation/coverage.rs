//! The random runs reach every kind of end, and every step of the legacy view.

use super::{AFTER, Waiter, run};
use std::{collections::BTreeSet, time::Duration};

#[test]
fn the_simulation_meets_every_kind_of_ending() {
    let mut endings = BTreeSet::new();
    let mut fates = BTreeSet::new();
    let mut turns = BTreeSet::new();
    for seed in 0..5000 {
        let world = run(u64::wrapping_mul(seed, 0x9E37_79B9_7F4A_7C15), Some(AFTER));
        fates.extend(world.server.questions.values().map(|fate| format!("{fate:?}")));
        turns.insert((world.server.turns, world.client.has_handle));
        endings.insert((
            world.client.gone,
            world.client.plain_answers.first().map(|word| format!("{word:?}")),
            world.record.as_ref().map(|record| record.state.status()),
            world.client.rounds > 1,
        ));
    }
    for state in ["completed", "failed", "cancelled"] {
        assert!(endings.iter().any(|(_, _, status, _)| *status == Some(state)), "no task ended {state}");
    }
    assert!(endings.contains(&(true, None, None, false)), "no client left early");
    assert!(endings.iter().any(|(_, answer, ..)| answer.as_deref() == Some("Result")), "no plain answer");
    assert!(endings.iter().any(|(.., rounds)| *rounds), "no call with several rounds");
    for turned in [(1, false), (2, false), (1, true), (2, true)] {
        assert!(turns.contains(&turned), "no call was made again, and a task or not: {turned:?}");
    }
    for fate in ["Answered", "Withdrawn", "Declined"] {
        assert!(fates.contains(fate), "no question was {fate}");
    }
}

#[test]
fn the_simulation_shows_the_legacy_view_every_step_and_releases_waiters_early_and_late() {
    let mut steps = BTreeSet::new();
    let mut releases = BTreeSet::new();
    let mut tasks = 0;
    for seed in 0..5000 {
        let world = run(u64::wrapping_mul(seed, 0x9E37_79B9_7F4A_7C15), Some(Duration::ZERO));
        tasks += usize::from(world.client.has_handle);
        steps.extend(world.older.steps);
        for Waiter { came_late, .. } in &world.older.waiters {
            releases.insert((world.older.status.expect("it was stored"), *came_late));
        }
    }
    let ends = ["cancelled", "completed", "failed"];
    let wanted = ["input_required", "working"].into_iter().flat_map(|from| {
        let other = if from == "working" { "input_required" } else { "working" };
        ends.into_iter().chain([other]).map(move |to| (from, to))
    });
    assert!(tasks > 500, "few calls became tasks: {tasks}");
    assert_eq!(steps, wanted.collect());
    // A tool that failed is the one thing of which the two choices make two.
    let ended = [["failed", "completed"], ["completed"; 2], ["failed"; 2], ["cancelled"; 2]];
    let wanted = ended.into_iter().flat_map(|statuses| [(statuses, false), (statuses, true)]);
    assert_eq!(releases, wanted.collect());
}
