//! Tasks kept in this process.

use super::{Store, StoreError, Version};
use crate::{
    protocol::Timestamp,
    task::{Record, TaskId},
};
use async_trait::async_trait;

/// Forgets everything at exit.
#[derive(Debug, Default)]
pub struct Memory {}

#[async_trait]
impl Store for Memory {
    async fn insert(&self, _record: Record) -> Result<(), StoreError> {
        todo!()
    }

    async fn load(&self, _id: &TaskId) -> Result<Option<(Version, Record)>, StoreError> {
        todo!()
    }

    async fn swap(&self, _version: Version, _record: Record) -> Result<bool, StoreError> {
        todo!()
    }

    async fn remove(&self, _id: &TaskId) -> Result<(), StoreError> {
        todo!()
    }

    async fn due(&self, _now: Timestamp, _limit: usize) -> Result<Vec<TaskId>, StoreError> {
        todo!()
    }
}
