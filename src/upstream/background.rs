//! Work for one server that outlives a call: cancellations, answers, farewells.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio::runtime::Handle;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::UpstreamSetupError;
use crate::runtime::spawn_on;

/// All of it. Clones are the same.
#[derive(Clone, Debug)]
pub struct BackgroundTasks {
    tasks: TaskTracker,
    runtime: Handle,
    /// Set when the house closes.
    pub(super) closing: CancellationToken,
    /// The same, for each call to look at without a lock.
    is_closing: Arc<AtomicBool>,
}

// === impl Work ===

impl BackgroundTasks {
    /// # Errors
    /// [`UpstreamSetupError::NoRuntime`].
    pub(super) fn new() -> Result<Self, UpstreamSetupError> {
        let runtime = Handle::try_current().map_err(|_| UpstreamSetupError::NoRuntime)?;
        Ok(Self {
            tasks: TaskTracker::new(),
            runtime,
            closing: CancellationToken::new(),
            is_closing: Arc::default(),
        })
    }

    /// The house closes.
    pub(super) fn close(&self) {
        self.is_closing.store(true, Ordering::Release);
        self.closing.cancel();
    }

    pub(super) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    /// Spawns work that [`BackgroundTasks::wait`] waits for. May be called from a destructor on any thread.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        spawn_on(self.tasks.track_future(work), &self.runtime);
    }

    /// Waits until all spawned work has ended.
    pub(super) async fn wait(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}
