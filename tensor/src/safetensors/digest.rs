//! Digests of a file that this program writes, in its header's metadata: of each tensor, block by block, and
//! of the header itself. A file of another program has none, and is read unchecked.
//!
//! ```text
//! "digests"         16 hexadecimal digits for each block of 1 MiB of each tensor, in the order of the data
//! "header_digest"   16 digits: the digest of the header's text with zeros in their place
//! ```
//! The digits do not change the header's length, so tensors are written before their digests are known, in
//! any order. A reader digests a block when it first reads bytes of it, so a rank that reads its part of a
//! tensor checks that part. Digests are XXH3 of 64 bits: they find accidents, not forgeries.
use super::error::FormatError;
use super::header::{self, Header, Places};
use crate::dtype::Dtype;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use xxhash_rust::xxh3::xxh3_64;

/// Bytes of a block, the last block of a tensor may have fewer.
const BLOCK: usize = 1 << 20;
const DIGITS: usize = 16;
const OF_DATA: &str = "digests";
const OF_HEADER: &str = "header_digest";

/// Splits each of these ranges of the data into blocks.
fn blocks(tensors: impl Iterator<Item = (usize, usize)>) -> impl Iterator<Item = Range<usize>> {
    tensors.flat_map(|(from, to)| (from..to).step_by(BLOCK).map(move |at| at..to.min(at + BLOCK)))
}

/// Layout of a file whose digests are not known yet.
pub(super) struct Outline {
    metadata: BTreeMap<String, String>,
    pub(super) places: Places,
    /// Bytes before the data.
    pub(super) start: usize,
}

impl Outline {
    /// Lays out these tensors, one after the other.
    pub(super) fn new<N: AsRef<str>>(
        metadata: &BTreeMap<String, String>,
        tensors: &[(N, Dtype, Vec<usize>)],
    ) -> Result<Self, FormatError> {
        let mut outline = Self { metadata: metadata.clone(), places: header::places(tensors)?, start: 0 };
        outline.start = outline.header(&vec![0; outline.blocks().len()])?.len();
        Ok(outline)
    }
    /// Returns the ranges of the data that have a digest each.
    pub(super) fn blocks(&self) -> Vec<Range<usize>> {
        blocks(self.places.iter().map(|(_, info)| info.data_offsets)).collect()
    }
    /// Bytes of the whole file.
    pub(super) fn len(&self) -> usize {
        self.start + self.places.last().map_or(0, |(_, info)| info.data_offsets.1)
    }
    /// Returns the bytes before the data, with the digests of all blocks.
    pub(super) fn header(&self, digests: &[u64]) -> Result<Vec<u8>, FormatError> {
        let mut metadata = self.metadata.clone();
        let digits: Vec<_> = digests.iter().map(|digest| format!("{digest:016x}")).collect();
        metadata.insert(OF_DATA.into(), digits.concat());
        metadata.insert(OF_HEADER.into(), "0".repeat(DIGITS));
        let header = header::text(&metadata, &self.places)?;
        let sealed = of_text(&header).map(|digest| header.replacen(&field(0), &field(digest), 1));
        Ok(header::framed(&sealed.unwrap_or(header)))
    }
    /// Digests some of the blocks, as they are in the file.
    pub(super) fn digests(&self, file: &mut fs::File, which: Range<usize>) -> io::Result<Vec<u64>> {
        let mut room = vec![0; BLOCK];
        let digest = |block: &Range<usize>| {
            file.seek(SeekFrom::Start((self.start + block.start) as u64))?;
            file.read_exact(&mut room[..block.len()])?;
            Ok(xxh3_64(&room[..block.len()]))
        };
        self.blocks()[which].iter().map(digest).collect()
    }
}

/// The header's own digest as it is in its text.
fn field(digest: u64) -> String {
    format!("\"{OF_HEADER}\":\"{digest:016x}\"")
}

/// Digest of a header's text, with zeros in place of its own digest; `None` if the text has no digest.
fn of_text(header: &str) -> Option<u64> {
    let begin = header.find(&format!("\"{OF_HEADER}\":\""))?;
    let digits = begin + OF_HEADER.len() + 4;
    let before = header.get(..digits)?;
    Some(xxh3_64([before, &"0".repeat(DIGITS), header.get(digits + DIGITS..)?].concat().as_bytes()))
}

/// Takes the digests out of the metadata of a file's header, and checks the header's own. Returns those of
/// each tensor's blocks; none if the file has no digests.
pub(super) fn take(file: &[u8], header: &mut Header) -> Result<BTreeMap<String, TensorBlocks>, FormatError> {
    let given = [OF_DATA, OF_HEADER].map(|key| header.metadata.remove(key));
    if given == [None, None] {
        return Ok(BTreeMap::new());
    }
    let text = str::from_utf8(&file[header::LENGTH..header.end]).expect("it was parsed");
    let mut tensors: Vec<_> = header.tensors.iter().map(|(name, info)| (name, info.data_offsets)).collect();
    tensors.sort_by_key(|(_, range)| *range);
    let [data, own] = given.map(Option::unwrap_or_default);
    let computed = of_text(text).map_or_else(|| "none".into(), |digest| format!("{digest:016x}"));
    if own != computed {
        return Err(FormatError::HeaderAltered { seen: computed, wanted: own });
    }
    let wanted = DIGITS * blocks(tensors.iter().map(|(_, range)| *range)).count();
    let digest = |digits: &[u8]| u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
    let all: Option<Vec<u64>> = data.as_bytes().chunks(DIGITS).map(digest).collect();
    let Some(all) = all.filter(|_| data.len() == wanted) else {
        return Err(FormatError::Digests { seen: data.len(), wanted });
    };
    let mut left = all.into_iter();
    let of = |(name, (from, to)): &(&String, (usize, usize))| {
        let digests = left.by_ref().take((to - from).div_ceil(BLOCK));
        ((*name).clone(), TensorBlocks(digests.map(|digest| (digest, AtomicU8::new(UNREAD))).collect()))
    };
    Ok(tensors.iter().map(of).collect())
}

/// The blocks of a tensor: the digest of each, and its state.
pub(super) struct TensorBlocks(Vec<(u64, AtomicU8)>);

const UNREAD: u8 = 0;
const DIGESTING: u8 = 1; // by one of the threads that read it
const INTACT: u8 = 2;
const ALTERED: u8 = 3;

impl TensorBlocks {
    /// Digests the blocks of these bytes of the tensor, unless another reader has begun to.
    pub(super) fn read(&self, tensor: &[u8], bytes: Range<usize>) {
        for at in bytes.start / BLOCK..bytes.end.div_ceil(BLOCK) {
            let (digest, state) = &self.0[at];
            let is_first =
                |state: &AtomicU8| state.compare_exchange(UNREAD, DIGESTING, Relaxed, Relaxed).is_ok();
            if state.load(Relaxed) == UNREAD && is_first(state) {
                let block = &tensor[at * BLOCK..tensor.len().min((at + 1) * BLOCK)];
                state.store(if xxh3_64(block) == *digest { INTACT } else { ALTERED }, Relaxed);
            }
        }
    }
    /// True unless a block that was read has another digest. Call it when all readers have read.
    pub(super) fn are_intact(&self) -> bool {
        self.0.iter().all(|(_, state)| state.load(Relaxed) != ALTERED)
    }
}

#[cfg(test)]
mod tests {
    use crate::dtype::Dtype;
    use crate::safetensors::error::{Error, FormatError};
    use crate::safetensors::file::File;
    use crate::safetensors::writer::Writer;
    use std::collections::BTreeMap;
    use std::fs;

    /// A file of two tensors, the first of so many rows of a thousand elements.
    fn written(folder: &tempfile::TempDir, rows: usize) -> Vec<u8> {
        let (path, values) =
            (folder.path().join("x"), (0..1000 * rows).map(|i| i as f32).collect::<Vec<_>>());
        let notes = BTreeMap::from([("step".to_string(), "7".to_string())]);
        let tensors = [("long", Dtype::F32, vec![rows, 1000]), ("short", Dtype::F32, vec![3])];
        let mut writer = Writer::create(&path, &notes, &tensors).unwrap();
        writer.tensor("long", &values).unwrap();
        writer.tensor("short", &[1.0f32, 2.0, 3.0]).unwrap();
        writer.finish().unwrap();
        fs::read(path).unwrap()
    }
    fn opened(folder: &tempfile::TempDir, bytes: &[u8]) -> Result<File, FormatError> {
        let path = folder.path().join("y");
        fs::write(&path, bytes).unwrap();
        File::open(&path).map_err(|error| match error {
            Error::Fault { fault, .. } => fault,
            Error::File(error) => panic!("{error}"),
        })
    }

    /// Kills: a header whose text is not digested whole, digests that are lost or reach the reader's notes.
    #[test]
    fn an_altered_header_is_refused_when_it_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let whole = written(&folder, 1);
        let length = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
        let notes = opened(&folder, &whole).unwrap().metadata().clone();
        assert_eq!(notes, BTreeMap::from([("step".to_string(), "7".to_string())]));
        for at in 8..length {
            let mut bytes = whole.clone();
            bytes[at] ^= if bytes[at] == b' ' { b' ' ^ b'\n' } else { 1 };
            assert!(opened(&folder, &bytes).is_err(), "byte {at}: {:?}", bytes[at] as char);
        }
        let text = str::from_utf8(&whole[8..length]).unwrap().to_owned();
        let other = text.replacen("\"step\":\"7\"", "\"step\":\"8\"", 1);
        let Err(FormatError::HeaderAltered { seen, wanted }) =
            opened(&folder, &[&whole[..8], other.as_bytes(), &whole[length..]].concat())
        else {
            panic!("accepted")
        };
        assert!(seen != wanted && text.contains(&wanted) && seen.len() == 16);
    }

    /// Kills: a block that is not checked, checked before it is read, or charged to another tensor.
    #[test]
    fn an_altered_tensor_is_found_by_the_first_read_of_the_altered_block() {
        let folder = tempfile::tempdir().unwrap();
        let whole = written(&folder, 600); // two blocks, and a bit
        let start = whole.len() - 4 * 600_003;
        for (at, row, name) in
            [(0, 0, "long"), (1 << 20, 262, "long"), (2_399_999, 599, "long"), (2_400_000, 0, "short")]
        {
            let mut bytes = whole.clone();
            bytes[start + at] ^= 0x40;
            let file = opened(&folder, &bytes).unwrap();
            let (long, short) =
                (file.matrix("long", [600, 1000]).unwrap(), file.matrix("short", [1, 3]).unwrap());
            long.row(if row == 0 { 599 } else { 0 }, 0, &mut [0.0; 1000]);
            assert!(file.intact("long").is_ok() && file.intact("short").is_ok());
            long.band(row..row + 1).row(0, 999, &mut [0.0]);
            short.row(0, 1, &mut [0.0]);
            let why = file.intact(name).unwrap_err().to_string();
            assert!(why.ends_with(&format!("tensor \"{name}\" is torn or altered: its digest is another")));
            let why = opened(&folder, &bytes).unwrap().verify().unwrap_err().to_string();
            assert!(why.contains(name), "{why}");
        }
        assert!(opened(&folder, &whole).unwrap().verify().is_ok());
    }
}
