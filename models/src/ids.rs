//! `--batch FILE`: sequences of token ids, as a JSON list of lists. The target of each id is the next id, so
//! a sequence of n ids has n − 1 predictions. A list of lists in place of a sequence packs documents: each
//! document has its own positions and attends only to itself. A document of one id has no prediction, and is
//! left out.
use layers::counted;
use parallel::{Error, Result, Sequence, bail};
use serde::Deserialize;
use std::path::Path;
use tensor::quoted::sentence;
use tensor::{files, mix};

#[derive(Deserialize)]
#[serde(untagged, expecting = "a sequence must be a list of token ids, or a list of such lists")]
enum Item {
    One(Vec<u32>),
    Packed(Vec<Vec<u32>>),
}

/// Reads sequences for a model with this vocabulary and this number of positions.
///
/// # Errors
/// If the file is not such a list, an id is not in the vocabulary, or a document is too short or too long.
pub fn read(path: &Path, vocabulary: usize, positions: usize) -> Result<Vec<Sequence>> {
    let name = path.display();
    let items: Vec<Item> = serde_json::from_slice(&files::read(path)?).map_err(|why| {
        let why = sentence(&why.to_string());
        Error::new(format!("{name} is not a JSON list of lists of token ids: {why}"))
    })?;
    if items.is_empty() {
        bail!("{name} has no sequences; it must be a list of one or more lists of token ids");
    }
    let sequence = |(at, item): (usize, Item)| {
        let (documents, is_packed) = match item {
            Item::One(ids) => (vec![ids], false),
            Item::Packed(documents) => (documents, true),
        };
        if documents.is_empty() {
            bail!("{name}: sequence {at} has no documents; it must have one or more");
        }
        let pair = |(i, ids): (usize, Vec<u32>)| {
            let document = if is_packed { format!(", document {i}") } else { String::new() };
            check(&ids, is_packed, vocabulary, positions)
                .map_err(|why| Error::new(format!("{name}: sequence {at}{document} {why}")))?;
            Ok((ids[..ids.len() - 1].to_vec(), ids[1..].to_vec()))
        };
        let pairs = documents.into_iter().enumerate().map(pair).collect::<Result<Vec<_>>>()?;
        let learnt: Vec<_> = pairs.into_iter().filter(|(ids, _)| !ids.is_empty()).collect();
        if learnt.is_empty() {
            bail!("{name}: sequence {at} has only documents of 1 id; {LEAST}");
        }
        Ok(Sequence::packed(&learnt))
    };
    items.into_iter().enumerate().map(sequence).collect()
}

const LEAST: &str = "at least 2 are needed to predict one from another";

fn check(
    ids: &[u32],
    is_packed: bool,
    vocabulary: usize,
    positions: usize,
) -> std::result::Result<(), String> {
    if ids.len() < if is_packed { 1 } else { 2 } {
        return Err(format!("has {}; {LEAST}", counted(ids.len(), "id")));
    }
    if ids.len() - 1 > positions {
        return Err(format!("reads {} ids; the model has {}", ids.len() - 1, counted(positions, "position")));
    }
    match ids.iter().enumerate().find(|(_, id)| **id as usize >= vocabulary) {
        None => Ok(()),
        Some((at, id)) => Err(format!(
            "has id {id} at {at}, which is not in the vocabulary of {vocabulary} (ids go from 0 to {})",
            vocabulary - 1
        )),
    }
}

/// Hashes sequences, to identify them.
pub fn hash(sequences: &[Sequence]) -> u64 {
    let sizes = sequences.iter().flat_map(|s| s.documents.iter().map(|n| *n as u64));
    let ids = sequences.iter().flat_map(|s| s.ids.iter().chain(&s.targets[..]).map(|id| u64::from(*id)));
    sizes.chain(ids).fold(2, |hash, n| mix(hash ^ n))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> std::result::Result<Vec<Sequence>, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ids.json");
        std::fs::write(&path, text).unwrap();
        let displayed = path.display().to_string();
        read(&path, 10, 3).map_err(|error| error.why.replace(&displayed, "ids.json"))
    }

    /// Kills: targets that are not the next ids, a document's last id followed by the next document's first.
    #[test]
    fn every_id_is_followed_by_the_next() {
        let all = parse("[[1,2,3,4],[[5,6],[7,8,9]]]").unwrap();
        assert_eq!(all[0], Sequence::new(vec![1, 2, 3], vec![2, 3, 4]));
        assert_eq!((&all[1].ids[..], &all[1].targets[..]), (&[5, 7, 8][..], &[6, 8, 9][..]));
        assert_eq!(all[1].documents, [1, 2]);
        assert_eq!(
            parse("[[1,2,3,4],[[0],[5,6],[4],[7,8,9],[3]]]").unwrap(),
            all,
            "no prediction, no document"
        );
        let other = parse("[[1,2,3,4],[5,6],[7,8,9]]").unwrap();
        assert_ne!(hash(&all), hash(&other[1..]));
        assert_ne!(hash(&other), hash(&other[..2]));
        let mut packed = all.clone();
        packed[1].documents.reverse();
        assert_ne!(hash(&all), hash(&packed), "other documents of the same ids");
    }

    #[test]
    fn what_is_no_batch_is_said_in_one_sentence() {
        let why = |text: &str| parse(text).unwrap_err();
        assert_eq!(
            why("[]"),
            "ids.json has no sequences; it must be a list of one or more lists of token ids"
        );
        let two = "at least 2 are needed to predict one from another";
        assert_eq!(why("[[1,2],[3]]"), format!("ids.json: sequence 1 has 1 id; {two}"));
        assert_eq!(why("[[]]"), format!("ids.json: sequence 0 has 0 ids; {two}"));
        assert_eq!(why("[[[1,2],[]]]"), format!("ids.json: sequence 0, document 1 has 0 ids; {two}"));
        assert_eq!(why("[[[1],[2]]]"), format!("ids.json: sequence 0 has only documents of 1 id; {two}"));
        let outside = "has id 10 at 0, which is not in the vocabulary of 10 (ids go from 0 to 9)";
        assert_eq!(why("[[[1,2],[10]]]"), format!("ids.json: sequence 0, document 1 {outside}"));
        assert_eq!(why("[[1,2,3,4,5]]"), "ids.json: sequence 0 reads 4 ids; the model has 3 positions");
        assert_eq!(
            why("[[1,10]]"),
            "ids.json: sequence 0 has id 10 at 1, which is not in the vocabulary of 10 (ids go from 0 to 9)"
        );
        assert_eq!(why(""), "ids.json is empty (0 bytes)");
        let long = why(&format!("\"{}\"", "x".repeat(5000)));
        assert!(long.len() < 400 && long.contains("xxx…"), "{long}");
        for bad in ["[1,2]", "{}", "[[1,-2]]", "[[1,2.5]]", "[[1,", "[[\"a\",\"b\"]]"] {
            let why = why(bad);
            assert!(why.starts_with("ids.json is not a JSON list of lists of token ids: "), "{why}");
        }
    }
}
