//! Text as bytes: one token a byte. A corpus, its batches and its windows.
use std::path::Path;
use tensor::mix;

mod order3;
pub use order3::order3;

/// Token ids and, for each, the one that follows it.
pub type Pair = (Vec<u32>, Vec<u32>);

/// Why a text cannot be used: one sentence.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// The file could not be read.
    #[error(transparent)]
    File(#[from] tensor::files::Error),
    /// Nothing to learn from.
    #[error("{name} is empty (0 bytes)")]
    Empty {
        /// The text.
        name: String,
    },
    /// Sequences of no tokens.
    #[error("the sequence length is 0; it must be at least 1 token")]
    NoSequence,
    /// Not enough to learn from.
    #[error(
        "{name} has {bytes} bytes, of which the last tenth ({held_out}) is held out; sequences of {seq} tokens need \
         {wanted} bytes at least"
    )]
    Short {
        /// The text.
        name: String,
        /// How long it is.
        bytes: usize,
        /// How much of it is held out.
        held_out: usize,
        /// The tokens of a sequence.
        seq: usize,
        /// How long it must be.
        wanted: usize,
    },
    /// An id that is no byte.
    #[error("token {at} is {id}, which is no byte; it must be at most 255")]
    NoByte {
        /// Where it stands.
        at: usize,
        /// The id.
        id: u32,
    },
}

/// The ids of a text: its bytes.
pub fn encode(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// The text of these ids; what is not UTF-8 shows as `�`.
///
/// # Errors
/// If an id is no byte.
pub fn decode(ids: &[u32]) -> Result<String, TextError> {
    let byte = |(at, &id): (usize, &u32)| u8::try_from(id).map_err(|_| TextError::NoByte { at, id });
    let bytes: Vec<u8> = ids.iter().enumerate().map(byte).collect::<Result<_, _>>()?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A text to learn from, and its last tenth to be judged by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corpus {
    /// The first nine tenths.
    pub train: Vec<u32>,
    /// The last tenth, rounded down.
    pub held_out: Vec<u32>,
}

impl Corpus {
    /// Cuts a text for sequences of `seq` tokens; `name` is its name in messages.
    ///
    /// # Errors
    /// If a part has not the `seq + 1` bytes of a sequence and its targets.
    pub fn new(bytes: &[u8], name: &str, seq: usize) -> Result<Self, TextError> {
        let (name, held_out) = (name.to_owned(), bytes.len() / 10);
        if bytes.is_empty() {
            return Err(TextError::Empty { name });
        }
        if seq == 0 {
            return Err(TextError::NoSequence);
        }
        if held_out <= seq {
            let wanted = seq.saturating_add(1).saturating_mul(10);
            return Err(TextError::Short { name, bytes: bytes.len(), held_out, seq, wanted });
        }
        let (train, held_out) = bytes.split_at(bytes.len() - held_out);
        let ids = |part: &[u8]| part.iter().copied().map(u32::from).collect();
        Ok(Self { train: ids(train), held_out: ids(held_out) })
    }
    /// Reads a file and cuts it for sequences of `seq` tokens.
    ///
    /// # Errors
    /// If the file cannot be read, and as [`new`](Self::new).
    pub fn read(path: &Path, seq: usize) -> Result<Self, TextError> {
        Self::new(&tensor::files::read(path)?, &path.display().to_string(), seq)
    }
    /// The sequences of a step: `batch_size` pairs of `seq` ids and `seq` targets. Where sequence `b` of step `s`
    /// begins is a hash of (seed, `s·batch_size + b`): the same whatever the layout and the microbatches, and after an
    /// interruption.
    ///
    /// # Panics
    /// If `seq` is longer than what the corpus was cut for allows.
    pub fn batch(&self, seed: u64, step: usize, batch_size: usize, seq: usize) -> Vec<Pair> {
        assert!(seq < self.train.len(), "sequences of {seq} tokens from {} bytes", self.train.len());
        let starts = (self.train.len() - seq) as u128;
        let start = |b: usize| {
            let hash = mix(mix(seed) ^ (step as u64).wrapping_mul(batch_size as u64).wrapping_add(b as u64));
            ((u128::from(hash) * starts) >> 64) as usize
        };
        (0..batch_size).map(|b| pair(&self.train, start(b), seq)).collect()
    }
}

/// Consecutive windows of `seq` tokens, the last one shorter: every token but the first is a target once.
///
/// # Panics
/// If `seq` is 0.
pub fn windows(held_out: &[u32], seq: usize) -> Vec<Pair> {
    let targets = held_out.len().saturating_sub(1);
    (0..targets).step_by(seq).map(|start| pair(held_out, start, seq.min(targets - start))).collect()
}

fn pair(text: &[u32], start: usize, seq: usize) -> Pair {
    (text[start..start + seq].to_vec(), text[start + 1..=start + seq].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn ids(n: usize) -> Vec<u8> {
        (0..n).map(|at| at as u8).collect()
    }

    #[test]
    fn text_is_its_bytes_and_back() {
        for text in ["", "to be", "naïve – 数 🦀\n\0"] {
            assert_eq!(decode(&encode(text)).unwrap(), text);
        }
        assert_eq!(encode("aé"), [97, 195, 169]);
        assert_eq!(decode(&[97, 195, 98, 255]).unwrap(), "a\u{FFFD}b\u{FFFD}");
        let why = decode(&[97, 256]).unwrap_err().to_string();
        assert_eq!(why, "token 1 is 256, which is no byte; it must be at most 255");
    }

    /// Kills: held-out bytes that were trained on, bytes that are in neither part.
    #[test]
    fn the_last_tenth_is_held_out() {
        for (n, cut) in [(20, 18), (29, 27), (30, 27), (256, 231)] {
            let corpus = Corpus::new(&ids(n), "a", 1).unwrap();
            assert_eq!((corpus.train.len(), corpus.held_out[0]), (cut, cut as u32));
            let whole: Vec<u32> = (0..n as u32).collect();
            assert_eq!([corpus.train, corpus.held_out].concat(), whole);
        }
    }

    #[test]
    fn what_is_no_corpus_is_said_in_one_sentence() {
        let why = |n: usize, seq: usize| Corpus::new(&ids(n), "a.txt", seq).unwrap_err().to_string();
        assert_eq!(why(0, 4), "a.txt is empty (0 bytes)");
        assert_eq!(why(9, 0), "the sequence length is 0; it must be at least 1 token");
        let short = "a.txt has 649 bytes, of which the last tenth (64) is held out; sequences of 64 tokens need 650 bytes \
                     at least";
        assert_eq!(why(649, 64), short);
        assert!(Corpus::new(&ids(650), "a.txt", 64).is_ok());
        assert!(why(9, usize::MAX).contains(&format!("need {} bytes", usize::MAX)));

        let folder = tempfile::tempdir().unwrap();
        let why = |name: &str| {
            let why = Corpus::read(&folder.path().join(name), 4).unwrap_err().to_string();
            why.replace(folder.path().to_str().unwrap(), "")
        };
        std::fs::write(folder.path().join("a"), ids(50)).unwrap();
        std::fs::write(folder.path().join("short"), ids(49)).unwrap();
        std::fs::write(folder.path().join("empty"), "").unwrap();
        let corpus = Corpus::read(&folder.path().join("a"), 4).unwrap();
        assert_eq!(corpus, Corpus::new(&ids(50), "", 4).unwrap());
        assert_eq!(why("none"), "/none: there is no such file");
        assert_eq!(why("."), "/. is a directory where a file should be");
        assert_eq!(why("empty"), "/empty is empty (0 bytes)");
        assert!(why("short").starts_with("/short has 49 bytes, of which"));
    }

    /// Kills: targets that are the ids, or two steps ahead; a start beyond the text, a first or last one never taken.
    #[test]
    fn batches_are_pieces_of_the_text_from_its_beginning_to_its_end() {
        let corpus = Corpus::new(&ids(60), "a", 3).unwrap();
        let mut starts = BTreeSet::new();
        for step in 0..200 {
            for (ids, targets) in corpus.batch(1, step, 4, 3) {
                assert_eq!((ids.len(), targets.len()), (3, 3));
                assert_eq!(ids, corpus.train[ids[0] as usize..][..3]);
                assert_eq!(targets, corpus.train[ids[0] as usize + 1..][..3]);
                starts.insert(ids[0]);
            }
        }
        assert_eq!(starts, (0..=50).collect()); // 51 + 3 = 54 bytes to learn from
        assert_eq!(corpus.batch(1, 0, 1, 53)[0].1[52], 53); // the longest there is
    }

    /// Kills: a draw that depends on what was drawn before, on the batch size, or on nothing.
    #[test]
    fn a_sequence_is_the_same_in_whatever_batch_it_comes() {
        let corpus = Corpus::new(&ids(250).repeat(9), "a", 8).unwrap();
        let all = corpus.batch(5, 0, 64, 8);
        for size in [1, 2, 4, 16] {
            let cut: Vec<_> = (0..64 / size).flat_map(|step| corpus.batch(5, step, size, 8)).collect();
            assert_eq!(cut, all, "{size}");
        }
        assert_ne!(corpus.batch(6, 0, 64, 8), all);
        assert!(all.iter().collect::<BTreeSet<_>>().len() > 50);
        let starts: Vec<u32> = all[..6].iter().map(|(ids, _)| ids[0]).collect();
        assert_eq!(starts, [226, 26, 35, 68, 52, 18]); // what was drawn once is drawn for ever
    }

    /// Kills: a token predicted twice or never, a short end left out.
    #[test]
    fn windows_predict_every_token_once_but_the_first() {
        for n in 0..20 {
            let text: Vec<u32> = (0..n).collect();
            for seq in 1..25 {
                let windows = windows(&text, seq);
                let targets: Vec<u32> = windows.iter().flat_map(|(_, targets)| targets.clone()).collect();
                assert_eq!(targets, (1..n).collect::<Vec<_>>());
                for (at, (ids, targets)) in windows.iter().enumerate() {
                    assert_eq!((ids[0] as usize, ids.len()), (at * seq, targets.len()));
                    assert!(ids.len() == seq || at + 1 == windows.len());
                    assert!(ids.iter().zip(targets).all(|(id, target)| id + 1 == *target));
                }
            }
        }
    }
}
