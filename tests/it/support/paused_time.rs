//! The runtime's clock, paused and advanced.

use std::{sync::mpsc, time::Duration};

/// Lets so much time pass at once: what is to happen by then is due.
///
/// Before and behind that, time goes by as it does. So what is to happen first can have seconds, however busy the
/// machine is, and what is waited for takes none. The clock is that of this runtime, which has one thread: of the
/// proxies, servers and clients in it. No network waits meanwhile, as it would if the clock stood still for longer.
pub(crate) async fn passes(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// Between two questions of a client that asks until something is so: without it a fast machine asks more often than is
/// allowed (`limits.polls_per_second`), and keeps a core from whom it waits for. Of no clock of a test.
pub(crate) async fn a_moment() {
    let pause = || std::thread::sleep(Duration::from_millis(2));
    tokio::task::spawn_blocking(pause).await.expect("it does not panic");
}

/// Time stands still for as long as this lives, but for [`Still::passes`]. The network goes on.
pub(crate) struct Still {
    _until: mpsc::Sender<()>,
}

impl Still {
    pub(crate) fn stands() -> Self {
        tokio::time::pause();
        let (until, over) = mpsc::channel::<()>();
        // While one waits in a thread of its own, a clock that stands still is not moved on by whoever waits for it.
        tokio::task::spawn_blocking(move || over.recv());
        Self { _until: until }
    }

    /// Lets so much time pass at once.
    pub(crate) async fn passes(&self, time: Duration) {
        tokio::time::advance(time).await;
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        tokio::time::resume();
    }
}
