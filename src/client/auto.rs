//! Whichever revision the server speaks: the newest is tried, and where the server does not seem to know
//! it, the handshake of the older ones (2026-07-28, *Versioning, Backward Compatibility*).

use super::{
    Answers, Call, Declared, Error, Step, Turn, Watch, legacy,
    modern::{self, Opened},
};
use crate::protocol::Revision;
use http::{HeaderMap, Uri};

/// The newest of the older revisions; a server may choose one before it.
const NEWEST_LEGACY: Revision = Revision::V2025_11_25;

/// A session whose dialect shows when it is opened.
pub struct Session {
    url: Uri,
    headers: HeaderMap,
    declared: Declared,
    spoken: Spoken,
}

#[expect(clippy::large_enum_variant, reason = "there is one in the whole process")]
enum Spoken {
    Modern(modern::Session),
    Legacy(legacy::Session),
}

/// What a call of either dialect waits for.
pub enum Pause {
    Modern(modern::Pause),
    Legacy(legacy::Pause),
}

// === impl Session ===

impl Session {
    pub fn new(url: Uri, headers: HeaderMap, declared: Declared) -> Self {
        let modern = modern::Session::new(url.clone(), headers.clone(), declared);
        Self { url, headers, declared, spoken: Spoken::Modern(modern) }
    }

    /// Begins in the dialect that the server knows.
    async fn choose(&mut self, tool: Option<&str>, watch: Watch<'_>) -> Result<(), Error> {
        let Spoken::Modern(modern) = &mut self.spoken else { unreachable!("a session is opened once") };
        let doubt = match modern.begin(tool).await {
            Ok(Opened::Known) => return Ok(()),
            Ok(Opened::Doubtful) => None,
            Err(error) if error.may_be_of_older() => Some(error),
            Err(error) => return Err(error),
        };
        let mut legacy =
            legacy::Session::new(self.url.clone(), self.headers.clone(), self.declared, NEWEST_LEGACY);
        let opened = match tool {
            Some(tool) => super::Session::open(&mut legacy, tool, watch).await,
            None => legacy.begin(watch).await,
        };
        match (opened, doubt) {
            (Ok(()), _) => {
                if legacy.revision() == NEWEST_LEGACY {
                    watch(Step::Revision(NEWEST_LEGACY.as_str()));
                }
                self.spoken = Spoken::Legacy(legacy);
                Ok(())
            }
            // It knows the newest after all, and refused the list of tools only.
            (Err(Error::Handshake(_)), None) => Ok(()),
            (Err(Error::Handshake(older)), Some(newest)) => {
                Err(Error::NoRevision { newest: Box::new(newest), older })
            }
            (Err(error), _) => Err(error),
        }
    }
}

impl super::Session for Session {
    type Pause = Pause;

    async fn open(&mut self, tool: &str, watch: Watch<'_>) -> Result<(), Error> {
        self.choose(Some(tool), watch).await
    }

    async fn call(&mut self, call: &Call<'_>, watch: Watch<'_>) -> Result<Turn<Pause>, Error> {
        match &mut self.spoken {
            Spoken::Modern(modern) => Ok(modern.call(call, watch).await?.map(Pause::Modern)),
            Spoken::Legacy(legacy) => Ok(legacy.call(call, watch).await?.map(Pause::Legacy)),
        }
    }

    async fn resume(&mut self, task: &str, watch: Watch<'_>) -> Result<Turn<Pause>, Error> {
        self.choose(None, watch).await?;
        match &mut self.spoken {
            Spoken::Modern(modern) => Ok(modern.go_on(task, watch).await?.map(Pause::Modern)),
            Spoken::Legacy(legacy) => Ok(legacy.go_on(task, watch).await?.map(Pause::Legacy)),
        }
    }

    async fn answer(
        &mut self,
        call: &Call<'_>,
        pause: Pause,
        answers: &Answers,
        watch: Watch<'_>,
    ) -> Result<Turn<Pause>, Error> {
        match (&mut self.spoken, pause) {
            (Spoken::Modern(modern), Pause::Modern(pause)) => {
                Ok(modern.answer(call, pause, answers, watch).await?.map(Pause::Modern))
            }
            (Spoken::Legacy(legacy), Pause::Legacy(pause)) => {
                Ok(legacy.answer(call, pause, answers, watch).await?.map(Pause::Legacy))
            }
            (Spoken::Modern(_), Pause::Legacy(_)) | (Spoken::Legacy(_), Pause::Modern(_)) => {
                unreachable!("the dialect does not change once it is known")
            }
        }
    }

    async fn cancel(&mut self) -> Result<(), Error> {
        match &mut self.spoken {
            Spoken::Modern(modern) => modern.cancel().await,
            Spoken::Legacy(legacy) => legacy.cancel().await,
        }
    }

    async fn close(&mut self) {
        match &mut self.spoken {
            Spoken::Modern(modern) => modern.close().await,
            Spoken::Legacy(legacy) => legacy.close().await,
        }
    }
}
