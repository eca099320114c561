//! Background tasks of one server that outlive a call: cancellations, responses, closing of sessions.

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

/// Tracker of the background tasks of one server. Clones share the state.
#[derive(Clone, Debug)]
pub struct BackgroundTasks {
    tasks: TaskTracker,
    runtime: Handle,
    /// Cancelled when the proxy shuts down.
    pub(super) closing: CancellationToken,
    /// Whether the proxy shuts down: the same flag, readable without a lock for each call.
    is_closing: Arc<AtomicBool>,
}

// === impl BackgroundTasks ===

impl BackgroundTasks {
    /// Creates a tracker that spawns tasks on the current runtime.
    ///
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

    /// Starts the shutdown.
    pub(super) fn close(&self) {
        self.is_closing.store(true, Ordering::Release);
        self.closing.cancel();
    }

    /// Whether the proxy is shutting down.
    pub(super) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    /// Spawns a task that [`BackgroundTasks::wait`] waits for. Callable from a destructor on any thread.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        spawn_on(self.tasks.track_future(work), &self.runtime);
    }

    /// Waits until all spawned tasks have ended.
    pub(super) async fn wait(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}
