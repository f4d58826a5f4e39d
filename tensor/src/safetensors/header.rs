//! The header: parsed and checked completely, and written.
//!
//! Allocations are proportional to the bytes that the header really has.
use super::error::FormatError;
use crate::dtype::{Dtype, named, size};
use crate::quoted::quoted;
pub use ::safetensors::tensor::TensorInfo as Info;
use ::safetensors::{SafeTensorError, tensor::Metadata};
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::marker::PhantomData;

/// The longest header that is read or written, in bytes: the format's own limit.
pub(super) const MAX_HEADER: u64 = 100_000_000;
pub(super) const LENGTH: usize = 8; // bytes before the header, which hold its length
const ALIGN: usize = 8; // of the data in the file
const METADATA: &str = "__metadata__";

/// A header whose tensors lie in the file, one after the other, without holes.
pub(super) struct Header {
    /// End of the header in the file, where the data begins; offsets of tensors are counted from here.
    pub(super) end: usize,
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) tensors: BTreeMap<String, Info>,
}

/// A tensor as the header describes it, before any check.
#[derive(Deserialize)]
#[serde(expecting = "an object of dtype, shape and data_offsets")]
struct Described<'a> {
    #[serde(borrow)]
    dtype: Cow<'a, str>,
    shape: Vec<usize>,
    data_offsets: [usize; 2],
}

/// Bytes of a tensor; `None` on overflow.
pub(super) fn size_of(dtype: Dtype, shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |numbers, n| numbers.checked_mul(*n))?.checked_mul(size(dtype))
}

/// Reads the header of a whole file and checks it against the file.
pub(super) fn parse(file: &[u8]) -> Result<Header, FormatError> {
    let (length, rest) = file.split_first_chunk().ok_or(FormatError::Short { seen: file.len() })?;
    let length = u64::from_le_bytes(*length);
    if !(2..=MAX_HEADER).contains(&length) {
        return Err(FormatError::HeaderLength { seen: length });
    }
    let truncated = FormatError::HeaderTruncated { seen: length, left: rest.len() };
    let (header, data) = rest.split_at_checked(length as usize).ok_or(truncated)?;
    let header = str::from_utf8(header).map_err(|e| FormatError::NotUtf8 { at: e.valid_up_to() })?;
    let held: Object<Held> =
        serde_json::from_str(header).map_err(|e| FormatError::Json { why: e.to_string() })?;
    let (mut tensors, mut metadata) = (BTreeMap::new(), BTreeMap::new());
    let twice = |flaw| match flaw {
        FormatError::Twice { name, .. } if name == METADATA => {
            FormatError::Json { why: format!("{name:?}: appears twice, wanted once") }
        }
        other => other,
    };
    for (name, held) in held.once("tensor").map_err(twice)? {
        match held {
            Held::Metadata(notes) => metadata.extend(notes.once("the metadata's key")?),
            Held::Tensor(tensor) => {
                let info = tensor.check(&name, data.len())?;
                tensors.insert(name, info);
            }
        }
    }
    check_cover(&tensors, data.len())?;
    Ok(Header { end: LENGTH + header.len(), metadata, tensors })
}

impl Described<'_> {
    /// Checks what can be checked of a tensor alone.
    fn check(self, name: &str, len: usize) -> Result<Info, FormatError> {
        let (name, shape, [begin, end]) = (name.to_owned(), self.shape, self.data_offsets);
        let Some(dtype) = named(&self.dtype) else {
            return Err(FormatError::UnknownDtype { name, seen: self.dtype.into_owned() });
        };
        let Some(wanted) = size_of(dtype, &shape) else {
            return Err(FormatError::Overflow { name, shape, dtype });
        };
        match end.checked_sub(begin) {
            None => Err(FormatError::Reversed { name, begin, end }),
            Some(seen) if seen != wanted => Err(FormatError::Size { name, shape, dtype, seen, wanted }),
            Some(_) if end > len => Err(FormatError::Outside { name, end, len }),
            Some(_) => Ok(Info { dtype, shape, data_offsets: (begin, end) }),
        }
    }
}

/// Checks that each tensor begins where the previous one ends, and that the last one ends with the data.
fn check_cover(tensors: &BTreeMap<String, Info>, len: usize) -> Result<(), FormatError> {
    let mut in_order: Vec<_> = tensors.iter().collect();
    in_order.sort_by_key(|(_, info)| info.data_offsets);
    let (mut wanted, mut before) = (0, "");
    for (name, info) in in_order {
        let (begin, end) = info.data_offsets;
        if begin < wanted {
            return Err(FormatError::Overlap {
                name: name.clone(),
                before: before.to_owned(),
                begin,
                wanted,
            });
        }
        if begin > wanted {
            return Err(FormatError::Hole { name: name.clone(), begin, wanted });
        }
        (wanted, before) = (end, name);
    }
    if wanted != len {
        return Err(FormatError::Trailing { seen: len, wanted });
    }
    Ok(())
}

/// A JSON object as values by key, including repeated keys.
pub(super) struct Object<V>(Vec<(String, V)>);

impl<V> Object<V> {
    /// Returns the values by key, if no key repeats.
    pub(super) fn once(self, what: &'static str) -> Result<Vec<(String, V)>, FormatError> {
        let mut keys = BTreeSet::new();
        match self.0.iter().find(|(key, _)| !keys.insert(key)).map(|(key, _)| key.clone()) {
            None => Ok(self.0),
            Some(name) => Err(FormatError::Twice { what, name }),
        }
    }
}

/// A value of such an object.
pub(super) trait Value<'de>: Sized {
    /// Description of the object, for errors.
    const OBJECT: &'static str;
    /// Reads the value of this key.
    fn read<A: MapAccess<'de>>(key: &str, from: &mut A) -> Result<Self, A::Error>;
}

impl<'de, V: Value<'de>> Deserialize<'de> for Object<V> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(HeaderKeys(PhantomData))
    }
}

struct HeaderKeys<V>(PhantomData<V>);
impl<'de, V: Value<'de>> Visitor<'de> for HeaderKeys<V> {
    type Value = Object<V>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(V::OBJECT)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object<V>, A::Error> {
        let mut pairs = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            let value = V::read(&key, &mut map)?;
            pairs.push((key, value));
        }
        Ok(Object(pairs))
    }
}

impl<'de> Value<'de> for String {
    const OBJECT: &'static str = "an object of strings by key";
    fn read<A: MapAccess<'de>>(_: &str, from: &mut A) -> Result<Self, A::Error> {
        from.next_value()
    }
}

/// Entry of a header.
enum Held<'a> {
    Metadata(Object<String>),
    Tensor(Described<'a>),
}
impl<'de> Value<'de> for Held<'de> {
    const OBJECT: &'static str = "an object of tensors by name";
    fn read<A: MapAccess<'de>>(key: &str, from: &mut A) -> Result<Self, A::Error> {
        let value = if key == METADATA {
            from.next_value().map(Held::Metadata)
        } else {
            from.next_value().map(Held::Tensor)
        };
        value.map_err(|why| A::Error::custom(format_args!("{}: {why}", quoted(key))))
    }
}

/// Tensors in the order of their data.
pub(super) type Places = Vec<(String, Info)>;

/// Lays tensors out one after the other.
pub(super) fn places<N: AsRef<str>>(tensors: &[(N, Dtype, Vec<usize>)]) -> Result<Places, FormatError> {
    let (mut places, mut end) = (Places::new(), 0usize);
    for (name, dtype, shape) in tensors {
        let (name, dtype, shape, begin) = (name.as_ref().to_owned(), *dtype, shape.clone(), end);
        if name == METADATA {
            return Err(FormatError::Reserved { name });
        }
        let Some(after) = size_of(dtype, &shape).and_then(|bytes| begin.checked_add(bytes)) else {
            return Err(FormatError::Overflow { name, shape, dtype });
        };
        end = after;
        places.push((name, Info { dtype, shape, data_offsets: (begin, end) }));
    }
    Object(places).once("tensor")
}

/// Returns the header's text, padded.
pub(super) fn text(metadata: &BTreeMap<String, String>, places: &Places) -> Result<String, FormatError> {
    let mut header = described(metadata, places).map_err(|e| FormatError::Json { why: e.to_string() })?;
    let length = header.len().next_multiple_of(ALIGN);
    if length as u64 > MAX_HEADER {
        return Err(FormatError::HeaderLength { seen: length as u64 });
    }
    header.push_str(&" ".repeat(length - header.len()));
    Ok(header)
}

/// Returns the bytes before the data: the header's length, and its text.
pub(super) fn framed(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

/// Returns the header's text. The format's own crate writes metadata in any order, so it is inserted here.
fn described(notes: &BTreeMap<String, String>, places: &Places) -> Result<String, SafeTensorError> {
    let mut header = serde_json::to_string(&Metadata::new(None, places.clone())?)?;
    if !notes.is_empty() {
        let comma = if places.is_empty() { "" } else { "," };
        header.insert_str(1, &format!("\"{METADATA}\":{}{comma}", serde_json::to_string(notes)?));
    }
    Ok(header)
}
