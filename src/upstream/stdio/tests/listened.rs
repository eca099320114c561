//! Processes that are kept or started for listeners of change notifications.

use std::time::Duration;
use tokio::time::sleep;

use super::{ASKABLE, MORE, MUTE, Process, World, starts::at_rest};
use crate::{
    dialect::Principal,
    runtime::Clock,
    upstream::{Upstream, stdio::ProcessSharing},
};

/// Processes of two sets of capabilities.
async fn two_at_rest(world: &mut World) -> [Process; 2] {
    [at_rest(world, 1, ASKABLE).await, at_rest(world, 2, MORE).await]
}

/// Cancels a call during which the process sent a request, which retires the process.
async fn is_lost(world: &World, process: &mut Process, id: u64, capabilities: &'static str) {
    let mut call = world.call(id, capabilities);
    assert_eq!(process.called().await, id);
    process.asks("q").await;
    call.next().await;
    call.work.abort();
}

#[tokio::test(start_paused = true)]
async fn no_process_is_started_for_listeners_if_one_of_another_set_reports_to_them() {
    let mut world = World::new();
    let _heard = world.server.watch(Principal::ANONYMOUS);
    let [mut first, mut second] = two_at_rest(&mut world).await;
    is_lost(&world, &mut first, 3, ASKABLE).await;
    while first.stdin.next_line().await.expect("it can be read").is_some() {}
    first.ends("exit status: 0").await;
    sleep(Duration::from_secs(60)).await;
    assert!(world.is_quiet(), "the other hears");
    // The last process is replaced before it ends.
    is_lost(&world, &mut second, 4, MORE).await;
    let _successor = world.up().await;
    while second.stdin.next_line().await.expect("it can be read").is_some() {}
}

#[tokio::test(start_paused = true)]
async fn one_process_is_kept_for_listeners() {
    let mut world = World::new();
    let heard = world.server.watch(Principal::ANONYMOUS);
    let mut processes = vec![at_rest(&mut world, 1, MUTE).await];
    processes.extend(two_at_rest(&mut world).await);
    let ended = async |processes: &mut Vec<Process>, after: Duration| {
        sleep(after).await;
        let mut left = Vec::new();
        for mut process in processes.drain(..) {
            let mut line = Box::pin(process.stdin.next_line());
            let is_over = futures_util::poll!(&mut line).is_ready();
            drop(line);
            if !is_over {
                left.push(process);
            }
        }
        *processes = left;
        processes.len()
    };
    assert_eq!(ended(&mut processes, Duration::from_secs(29 * 60)).await, 3);
    assert_eq!(ended(&mut processes, Duration::from_secs(3 * 60)).await, 1);
    assert_eq!(ended(&mut processes, Duration::from_secs(60 * 60)).await, 1);
    drop(heard);
    assert_eq!(ended(&mut processes, Duration::from_secs(60 * 60)).await, 0);
    assert!(world.is_quiet());
}

#[tokio::test(start_paused = true)]
async fn the_only_process_ends_without_waiting_for_another() {
    let mut world = World::with(|command, _| command.instances = ProcessSharing::Shared(1));
    let _heard = world.server.watch(Principal::ANONYMOUS);
    let mut process = at_rest(&mut world, 1, ASKABLE).await;
    let began = world.clock.now();
    is_lost(&world, &mut process, 2, ASKABLE).await;
    while process.stdin.next_line().await.expect("it can be read").is_some() {}
    process.ends("exit status: 0").await;
    let _successor = world.up().await;
    assert!(world.clock.now() - began < Duration::from_secs(5));
}
