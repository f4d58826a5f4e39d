//! Typed values of a configuration's keys. Errors are one sentence: the key, the value seen and the value
//! wanted.
use parallel::{Error, Result, bail};
use serde_json::{Map, Value, json};
use std::path::Path;
use tensor::quoted::{displayed, sentence};

const POSITIVE: &str = "a number above 0 and in the range of f32";

/// Keys of a JSON object, and its origin for messages.
pub struct ConfigKeys<'a> {
    pub(crate) map: &'a Map<String, Value>,
    pub(crate) origin: &'a str,
    pub(crate) within: &'a str, // "" or the path of an inner object, with its dot
}

impl ConfigKeys<'_> {
    /// Checks that every key is free, or is fixed and has one of its allowed values.
    pub(crate) fn check_against(&self, fixed: &[&str], free: impl Fn(&str) -> bool) -> Result<()> {
        for (key, value) in self.map {
            if value.is_null() || free(key) {
                continue; // null means left out
            }
            let mut words =
                fixed.iter().flat_map(|list| list.split(' ')).filter_map(|word| word.split_once('='));
            let Some((_, wanted)) = words.find(|(name, _)| name == key) else {
                let Self { origin, within, .. } = self;
                let key = displayed(key);
                let seen = displayed(&value.to_string());
                let advice = "remove it if the model computes the same without it";
                bail!("{origin}: {within}{key} is {seen}, but this key is not supported; {advice}");
            };
            if !wanted.split(',').any(|wanted| same(value, wanted)) {
                return Err(self.wrong(key, value, &format!("{}, or left out", wanted.replace(',', " or "))));
            }
        }
        Ok(())
    }
    /// Returns a key's value, unless it is left out or null.
    pub(crate) fn given(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }
    /// Returns a key's value, converted by `of`, unless it is left out or null. Fails if `of` returns `None`.
    pub(crate) fn read<T>(
        &self,
        key: &str,
        wanted: &str,
        of: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>> {
        self.given(key).map(|value| of(value).ok_or_else(|| self.wrong(key, value, wanted))).transpose()
    }
    /// Returns a whole number of at least 1.
    pub(crate) fn size(&self, key: &str, default: Option<usize>) -> Result<usize> {
        const WANTED: &str = "a whole number, 1 or more";
        let size = self.read(key, WANTED, |value| whole(value).filter(|size| *size > 0))?;
        size.or(default).ok_or_else(|| self.missing(key, WANTED))
    }
    /// Returns a number above 0, if there is one.
    pub(crate) fn positive(&self, key: &str) -> Result<Option<f64>> {
        self.read(key, POSITIVE, |value| {
            value.as_f64().filter(|number| *number > 0.0 && (*number as f32).is_finite())
        })
    }
    /// Returns a number above 0; fails if there is none.
    pub(crate) fn needed(&self, key: &str) -> Result<f64> {
        self.positive(key)?.ok_or_else(|| self.missing(key, POSITIVE))
    }
    /// Returns a whole number.
    pub(crate) fn count(&self, key: &str, default: usize) -> Result<usize> {
        Ok(self.read(key, "a whole number, 0 or more", whole)?.unwrap_or(default))
    }
    /// Returns a dropout rate.
    pub(crate) fn rate(&self, key: &str, default: f64) -> Result<f64> {
        let rate = |value: &Value| value.as_f64().filter(|rate| (0.0..1.0).contains(rate));
        Ok(self.read(key, "a number of 0 or more and below 1", rate)?.unwrap_or(default))
    }
    /// Returns `true` or `false`.
    pub(crate) fn flag(&self, key: &str, default: bool) -> Result<bool> {
        Ok(self.read(key, "true or false", Value::as_bool)?.unwrap_or(default))
    }
    /// Returns the tokens that begin and end a text.
    pub(crate) fn ends(
        &self,
        [bos, eos]: [Option<u32>; 2],
        vocabulary: usize,
    ) -> Result<(Option<u32>, Vec<u32>)> {
        let has = |id: &u32| (*id as usize) < vocabulary;
        let bos = self.ids("bos_token_id", bos.filter(has))?;
        let eos = self.ids("eos_token_id", eos.filter(has))?;
        if bos.len() > 1 {
            return Err(self.wrong("bos_token_id", &json!(bos), "one token id or null"));
        }
        Ok((bos.first().copied(), eos))
    }
    /// Returns token ids: one, a list, or none for `null`; the default if the key is left out. Ids outside
    /// the vocabulary are accepted, because `transformers` writes the ids of large models into small models'
    /// files; such ids never occur in a text.
    pub(crate) fn ids(&self, key: &str, default: Option<u32>) -> Result<Vec<u32>> {
        let Some(value) = self.map.get(key) else { return Ok(default.into_iter().collect()) };
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let ids = match value {
            Value::Null => Some(vec![]),
            Value::Array(list) => list.iter().map(id).collect(),
            one => id(one).map(|id| vec![id]),
        };
        ids.ok_or_else(|| {
            self.wrong(key, value, "null, a token id (a whole number below 2^32), or a list of such ids")
        })
    }
    /// Returns the error for a value that is not wanted.
    pub(crate) fn wrong(&self, key: &str, seen: &Value, wanted: &str) -> Error {
        self.value_error_in_words(key, &displayed(&seen.to_string()), wanted)
    }
    /// Returns the same error, with the value seen in words.
    pub(crate) fn value_error_in_words(&self, key: &str, seen: &str, wanted: &str) -> Error {
        let Self { origin, within, .. } = self;
        Error::new(format!("{origin}: {within}{key} is {seen}; it must be {wanted}"))
    }
    /// Returns the error for a required key that is missing.
    pub(crate) fn missing(&self, key: &str, wanted: &str) -> Error {
        Error::new(format!("{} has no {}{key}; it must be {wanted}", self.origin, self.within))
    }
}

/// Reads the text of a configuration of this kind; also returns its path, for messages.
pub(crate) fn read_text(path: &Path, kind: &str) -> Result<(String, String)> {
    let origin = path.display().to_string();
    let text = String::from_utf8(tensor::files::read(path)?).map_err(|why| {
        let byte = why.utf8_error().valid_up_to();
        no_config((&origin, kind), &format!("it is not valid UTF-8 (at byte {byte})"))
    })?;
    Ok((text, origin))
}

/// Parses the keys of a configuration of this kind; `origin` names it in messages.
pub(crate) fn object(text: &str, origin: &str, kind: &str) -> Result<Map<String, Value>> {
    let no_json = |why: serde_json::Error| no_config((origin, kind), &sentence(&why.to_string()));
    match serde_json::from_str(text).map_err(no_json)? {
        Value::Object(map) => Ok(map),
        _ => Err(no_config((origin, kind), "it must be an object in braces")),
    }
}

fn no_config((origin, kind): (&str, &str), why: &str) -> Error {
    Error::new(format!("{origin} is not a {kind} configuration: {why}"))
}

pub(crate) fn whole(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|size| usize::try_from(size).ok())
}

/// Returns true if a value equals this JSON. Numbers are compared by value, so 0.0 equals 0.
pub(crate) fn same(value: &Value, wanted: &str) -> bool {
    match value {
        Value::Number(number) => wanted.parse().is_ok_and(|wanted: f64| number.as_f64() == Some(wanted)),
        other => format!("{other}") == wanted,
    }
}
