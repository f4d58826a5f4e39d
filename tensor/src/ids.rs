//! Token ids: a type of their own, on the device, checked once where they enter.
use crate::device::Device;
use crate::meter::Category;
use crate::pool::{Owner, Tokens};
use std::borrow::Borrow;

/// A target that does not count: its row adds nothing to the loss, nor to the number of tokens it is a mean over.
pub const IGNORED: u32 = u32::MAX;

/// Token ids on a device, each below the vocabulary they were checked against. Clones share memory.
pub struct Ids<D: Device> {
    memory: Owner<D, Tokens>,
    len: usize,
    vocabulary: usize,
}

impl<D: Device> Clone for Ids<D> {
    fn clone(&self) -> Self {
        Self { memory: self.memory.clone(), ..*self }
    }
}

/// An id that is not in the vocabulary.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("token id {id} at position {at} is not in the vocabulary of {vocabulary} (ids go from 0 to {})", vocabulary - 1)]
pub struct IdsError {
    /// The id.
    pub id: u32,
    /// Where it stands.
    pub at: usize,
    /// How many ids there are.
    pub vocabulary: usize,
}

impl<D: Device> Ids<D> {
    /// Puts ids on the device, from where they lie or come from.
    ///
    /// # Errors
    /// If one is not below `vocabulary`.
    pub fn new(
        device: &D,
        ids: impl IntoIterator<Item = impl Borrow<u32>> + Clone,
        vocabulary: usize,
    ) -> Result<Self, IdsError> {
        Self::checked(device, ids, vocabulary, |id| (id as usize) < vocabulary)
    }
    /// Puts targets on the device; [`IGNORED`] is one, too.
    ///
    /// # Errors
    /// If another is not below `vocabulary`.
    pub fn targets(
        device: &D,
        ids: impl IntoIterator<Item = impl Borrow<u32>> + Clone,
        vocabulary: usize,
    ) -> Result<Self, IdsError> {
        Self::checked(device, ids, vocabulary, |id| id == IGNORED || (id as usize) < vocabulary)
    }
    fn checked(
        device: &D,
        ids: impl IntoIterator<Item = impl Borrow<u32>> + Clone,
        vocabulary: usize,
        may: impl Fn(u32) -> bool,
    ) -> Result<Self, IdsError> {
        let each = || ids.clone().into_iter().map(|id| *id.borrow());
        if let Some((at, id)) = each().enumerate().find(|(_, id)| !may(*id)) {
            return Err(IdsError { id, at, vocabulary });
        }
        let len = each().count();
        let mut memory = Owner::new(device, Category::Buffers, len);
        D::index(memory.raw_mut().expect("the only owner"), &mut each());
        Ok(Self { memory, len, vocabulary })
    }
    /// How many.
    pub fn len(&self) -> usize {
        self.len
    }
    /// None at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// How many different ids there could be.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }
    /// Where kernels read them.
    pub fn index(&self) -> &D::Index {
        self.memory.raw()
    }
    /// Where they lie.
    pub fn device(&self) -> &D {
        self.memory.device()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cpu;

    #[test]
    fn ids_outside_the_vocabulary_are_refused() {
        let cpu = Cpu::<f32>::default();
        let why = Ids::new(&cpu, &[0, 9, 10], 10).err().unwrap().to_string();
        assert_eq!(why, "token id 10 at position 2 is not in the vocabulary of 10 (ids go from 0 to 9)");
        let ids = Ids::new(&cpu, &[0, 9], 10).unwrap();
        assert_eq!((ids.len(), &**ids.index(), cpu.meter().now(Category::Buffers)), (2, &[0, 9][..], 8));
        drop(ids);
        assert_eq!(cpu.meter().now(Category::Buffers), 0);
        let why = Ids::targets(&cpu, &[9, 10], 10).err().unwrap().to_string();
        assert_eq!(why, "token id 10 at position 1 is not in the vocabulary of 10 (ids go from 0 to 9)");
        assert!(Ids::new(&cpu, &[IGNORED], 10).is_err() && Ids::targets(&cpu, &[IGNORED - 1], 10).is_err());
        assert_eq!(Ids::targets(&cpu, &[3, IGNORED], 10).unwrap().len(), 2);
    }
}
