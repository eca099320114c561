//! Processes that are kept or started for listeners of change notifications.

use std::time::Duration;
use tokio::time::sleep;

use super::{ASKABLE, MORE, MUTE, Process, World, starts::idle_process};
use crate::{
    dialect::Principal,
    runtime::Clock,
    upstream::{Upstream, stdio::ProcessSharing},
};

/// Processes of two sets of capabilities.
async fn two_idle_processes(world: &mut World) -> [Process; 2] {
    [idle_process(world, 1, ASKABLE).await, idle_process(world, 2, MORE).await]
}

/// Cancels a call during which the process sent a request. A call of another client then gets a fresh process.
async fn cancel_call(world: &World, process: &mut Process, id: u64, capabilities: &'static str) {
    let mut call = world.call(id, capabilities);
    assert_eq!(process.read_call().await, id);
    process.send_request("q").await;
    call.next().await;
    call.work.abort();
}

#[tokio::test(start_paused = true)]
async fn no_process_is_started_for_listeners_if_one_of_another_set_reports_to_them() {
    let mut world = World::new();
    let _heard = world.server.watch(Principal::ANONYMOUS).subscribe();
    let [first, second] = two_idle_processes(&mut world).await;
    first.ends("exit status: 0").await;
    sleep(Duration::from_secs(60)).await;
    assert!(world.has_no_start(), "the other hears");
    // The last process is replaced.
    second.ends("exit status: 0").await;
    let _successor = world.next_initialized().await;
}

#[tokio::test(start_paused = true)]
async fn one_process_is_kept_for_listeners() {
    let mut world = World::new();
    let heard = world.server.watch(Principal::ANONYMOUS).subscribe();
    let mut processes = vec![idle_process(&mut world, 1, MUTE).await];
    processes.extend(two_idle_processes(&mut world).await);
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
    assert!(world.has_no_start());
}

#[tokio::test(start_paused = true)]
async fn the_only_process_ends_without_waiting_for_another() {
    let mut world = World::with(|command, _| command.instances = ProcessSharing::Shared(1));
    let _heard = world.server.watch(Principal::ANONYMOUS).subscribe();
    let mut process = idle_process(&mut world, 1, ASKABLE).await;
    let began = world.clock.now();
    cancel_call(&world, &mut process, 2, ASKABLE).await;
    let _other = world.call(3, ASKABLE);
    while process.stdin.next_line().await.expect("it can be read").is_some() {}
    process.ends("exit status: 0").await;
    let _successor = world.next_initialized().await;
    assert!(world.clock.now() - began < Duration::from_secs(5));
}
