//! The header: parsed and checked until nothing in it can surprise, and written.
//!
//! Everything that is allocated here is in proportion to the bytes of the header that were really there.
use super::{Dtype, Flaw};
use crate::quoted::quoted;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

/// The longest header that is read or written, in bytes: the format's own limit.
pub(super) const MAX_HEADER: u64 = 100_000_000;
const LENGTH: usize = 8; // bytes before the header, which say how long it is
const ALIGN: usize = 8; // of the data in the file
const METADATA: &str = "__metadata__";

/// A tensor in a file: what it is and where its bytes lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// The kind of its numbers.
    pub dtype: Dtype,
    /// Its dimensions, outermost first. None: a single number.
    pub shape: Vec<usize>,
    /// Its bytes, counted from the beginning of the file.
    pub(super) bytes: Range<usize>,
}

/// A header whose tensors lie in the file, one after the other, without holes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) tensors: BTreeMap<String, Info>,
}

/// A tensor as the header describes it; nothing is checked yet.
#[derive(Serialize, Deserialize)]
#[serde(expecting = "an object of dtype, shape and data_offsets")]
struct Described<'a> {
    #[serde(borrow)]
    dtype: Cow<'a, str>,
    shape: Vec<usize>,
    data_offsets: [usize; 2],
}

/// Bytes of a tensor; `None` if they cannot be counted.
pub(super) fn size_of(dtype: Dtype, shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |numbers, n| numbers.checked_mul(*n))?.checked_mul(dtype.size())
}

/// Reads the header of a whole file and checks it against the file.
pub(super) fn parse(file: &[u8]) -> Result<Header, Flaw> {
    let (length, rest) = file.split_first_chunk().ok_or(Flaw::Short { seen: file.len() })?;
    let length = u64::from_le_bytes(*length);
    if !(2..=MAX_HEADER).contains(&length) {
        return Err(Flaw::HeaderLength { seen: length });
    }
    let truncated = Flaw::HeaderTruncated { seen: length, left: rest.len() };
    let (header, data) = rest.split_at_checked(length as usize).ok_or(truncated)?;
    let header = str::from_utf8(header).map_err(|e| Flaw::NotUtf8 { at: e.valid_up_to() })?;
    let raw: Raw = serde_json::from_str(header).map_err(|e| Flaw::Json { why: e.to_string() })?;
    let mut tensors = BTreeMap::new();
    for (name, described) in raw.tensors {
        let info = described.check(&name, data.len())?;
        insert_once(&mut tensors, "tensor", name, info)?;
    }
    check_cover(&tensors, data.len())?;
    for info in tensors.values_mut() {
        let before = LENGTH + header.len();
        info.bytes = before + info.bytes.start..before + info.bytes.end;
    }
    let mut metadata = BTreeMap::new();
    for (key, value) in raw.metadata.unwrap_or_default().0 {
        insert_once(&mut metadata, "the metadata's key", key, value)?;
    }
    Ok(Header { metadata, tensors })
}

/// Puts a value under a name that must be new.
pub(super) fn insert_once<V>(
    map: &mut BTreeMap<String, V>,
    what: &'static str,
    name: String,
    v: V,
) -> Result<(), Flaw> {
    if map.contains_key(&name) {
        return Err(Flaw::Twice { what, name });
    }
    map.insert(name, v);
    Ok(())
}

impl Described<'_> {
    /// What can be checked of a tensor alone. Its bytes are still counted from the beginning of the data.
    fn check(self, name: &str, len: usize) -> Result<Info, Flaw> {
        let (name, shape, [begin, end]) = (name.to_owned(), self.shape, self.data_offsets);
        let Some(dtype) = Dtype::named(&self.dtype) else {
            return Err(Flaw::UnknownDtype { name, seen: self.dtype.into_owned() });
        };
        let Some(wanted) = size_of(dtype, &shape) else {
            return Err(Flaw::Overflow { name, shape, dtype });
        };
        match end.checked_sub(begin) {
            None => Err(Flaw::Reversed { name, begin, end }),
            Some(seen) if seen != wanted => Err(Flaw::Size { name, shape, dtype, seen, wanted }),
            Some(_) if end > len => Err(Flaw::Outside { name, end, len }),
            Some(_) => Ok(Info { dtype, shape, bytes: begin..end }),
        }
    }
}

/// Each tensor begins where the one before it ends, and the last ends with the data.
fn check_cover(tensors: &BTreeMap<String, Info>, len: usize) -> Result<(), Flaw> {
    let mut in_order: Vec<_> = tensors.iter().collect();
    in_order.sort_by_key(|(_, info)| (info.bytes.start, info.bytes.end));
    let (mut wanted, mut before) = (0, "");
    for (name, info) in in_order {
        let begin = info.bytes.start;
        if begin < wanted {
            return Err(Flaw::Overlap { name: name.clone(), before: before.to_owned(), begin, wanted });
        }
        if begin > wanted {
            return Err(Flaw::Hole { name: name.clone(), begin, wanted });
        }
        (wanted, before) = (info.bytes.end, name);
    }
    if wanted != len {
        return Err(Flaw::Trailing { seen: len, wanted });
    }
    Ok(())
}

/// The header as it stands in the file, names that come twice and all.
#[derive(Default)]
struct Raw<'a> {
    metadata: Option<Strings>,
    tensors: Vec<(String, Described<'a>)>,
}
/// Strings by key, keys that come twice and all.
#[derive(Default)]
pub(super) struct Strings(pub(super) Vec<(String, String)>);

impl<'de> Deserialize<'de> for Raw<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = Raw<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors by name")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw<'de>, A::Error> {
                let mut raw = Raw::default();
                while let Some(name) = map.next_key::<String>()? {
                    let named = |why: A::Error| A::Error::custom(format_args!("{}: {why}", quoted(&name)));
                    if name != METADATA {
                        let described = map.next_value().map_err(named)?;
                        raw.tensors.push((name, described));
                    } else if raw.metadata.replace(map.next_value().map_err(named)?).is_some() {
                        return Err(named(A::Error::custom("comes twice, wanted once")));
                    }
                }
                Ok(raw)
            }
        }
        from.deserialize_map(Names)
    }
}

impl<'de> Deserialize<'de> for Strings {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = Strings;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings by key")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Strings, A::Error> {
                let mut strings = Strings::default();
                while let Some(pair) = map.next_entry()? {
                    strings.0.push(pair);
                }
                Ok(strings)
            }
        }
        from.deserialize_map(Keys)
    }
}

/// Tensors in the order in which they lie.
pub(super) type Places = Vec<(String, Info)>;

/// Lays tensors out one after the other: the bytes before the data, and each tensor's place in the file.
pub(super) fn render<N: AsRef<str>>(
    metadata: &BTreeMap<String, String>,
    tensors: &[(N, Dtype, Vec<usize>)],
) -> Result<(Vec<u8>, Places), Flaw> {
    let (mut places, mut names, mut end) = (Places::new(), BTreeSet::new(), 0usize);
    for (name, dtype, shape) in tensors {
        let (name, dtype, shape, begin) = (name.as_ref().to_owned(), *dtype, shape.clone(), end);
        if name == METADATA {
            return Err(Flaw::Reserved { name });
        }
        if !names.insert(name.clone()) {
            return Err(Flaw::Twice { what: "tensor", name });
        }
        let Some(after) = size_of(dtype, &shape).and_then(|bytes| begin.checked_add(bytes)) else {
            return Err(Flaw::Overflow { name, shape, dtype });
        };
        end = after;
        places.push((name, Info { dtype, shape, bytes: begin..end }));
    }
    let mut bytes = vec![0; LENGTH];
    serde_json::to_writer(&mut bytes, &Rendered { metadata, places: &places })
        .map_err(|e| Flaw::Json { why: e.to_string() })?;
    bytes.resize(bytes.len().next_multiple_of(ALIGN), b' ');
    let length = (bytes.len() - LENGTH) as u64;
    if length > MAX_HEADER {
        return Err(Flaw::HeaderLength { seen: length });
    }
    bytes[..LENGTH].copy_from_slice(&length.to_le_bytes());
    Ok((bytes, places))
}

struct Rendered<'a> {
    metadata: &'a BTreeMap<String, String>,
    places: &'a Places,
}

impl Serialize for Rendered<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        if !self.metadata.is_empty() {
            map.serialize_entry(METADATA, self.metadata)?;
        }
        for (name, info) in self.places {
            let (dtype, shape) = (info.dtype.name().into(), info.shape.clone());
            let data_offsets = [info.bytes.start, info.bytes.end];
            map.serialize_entry(name, &Described { dtype, shape, data_offsets })?;
        }
        map.end()
    }
}
