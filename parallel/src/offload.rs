//! Stores of state off the device: between updates a rank keeps its moments and masters there, and under ZeRO-3
//! its shards of values.
//!
//! ```text
//! update of parameter i    its state is here; that of i+1 comes, that of i−1 leaves
//! use of bucket i (ZeRO-3) its value is gathered; the shards of i+1 come
//! ```
//!
//! So the state of at most three parameters is on the device. Each rank keeps its own shards, whichever axes
//! split them. `layers::param` carries it out.
use crate::strategies::lists::list;
use crate::{Error, Layout, Result};
use ::tensor::quoted::displayed;
use ::tensor::{Store, files};
use comm::readable;
use layers::StrategyInfo;
use std::path::{Path, PathBuf};

list! { Offload, |offload| &offload.about;
    file::FILE,
    host::HOST,
}

/// A store of state off the device.
#[derive(Debug)]
pub struct Offload {
    /// Its description.
    pub about: StrategyInfo,
    /// True if state lies in the host's pinned memory, false if in a file.
    pub pinned: bool,
}

impl Layout {
    /// Returns the store of offloaded state that it names, if any.
    pub fn offload(&self) -> Option<&'static Offload> {
        ALL.iter().copied().find(|offload| self.takes(&offload.about))
    }
    /// The folder of the files of offloaded state, if it names such files.
    fn folder(&self) -> Option<PathBuf> {
        let is_file = self.offload().is_some_and(|offload| !offload.pinned);
        is_file.then(|| self.folder.map_or_else(std::env::temp_dir, Path::to_owned))
    }
    /// Creates a rank's store of offloaded state, if it names one.
    pub(crate) fn store(&self) -> Option<Store> {
        self.offload().map(|_| self.folder().map_or_else(Store::host, Store::file))
    }
    /// Checks that files of offloaded state have room for this many bytes.
    ///
    /// # Errors
    /// If there is a file and its folder does not take it.
    pub fn has_room(&self, bytes: u64) -> Result<()> {
        let Some(folder) = self.folder() else { return Ok(()) };
        files::has_room(&folder, bytes).map_err(|why| {
            let (folder, bytes) = (displayed(&folder.display().to_string()), readable(bytes.into()));
            Error::new(format!(
                "{folder} does not take a file of {bytes} of offloaded state: {why}; give another folder with \
                 --offload-dir"
            ))
        })
    }
}
