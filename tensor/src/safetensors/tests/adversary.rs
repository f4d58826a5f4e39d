//! Files that somebody made to deceive, or that something broke: each is refused with a reason, and none does
//! harm.
use super::error::{Error, FormatError};
use super::file::File;
use crate::dtype::KINDS;
use crate::mix;
use ::safetensors::SafeTensors;

/// A file of this header and data, whether they fit together or not.
pub(super) fn assemble(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

fn fault(bytes: Vec<u8>) -> FormatError {
    match File::from_memory(bytes) {
        Err(Error::Fault { fault, .. }) => fault,
        Err(Error::File(error)) => panic!("{error}"),
        Ok(_) => panic!("accepted"),
    }
}

/// Every tensor through every way of reading it.
fn read_all(file: &File) {
    for name in file.names() {
        let shape = &file.info(name).unwrap().shape;
        let _ = (
            file.values::<f32>(name, shape),
            file.values::<f64>(name, shape),
            file.values::<u64>(name, shape),
        );
        for shape in [[1, shape.first().copied().unwrap_or(1)], [shape.first().copied().unwrap_or(1), 4]] {
            let Ok(matrix) = file.matrix(name, shape) else { continue };
            let mut row = vec![0.0f64; shape[1]];
            for i in 0..shape[0] {
                matrix.row(i, 0, &mut row);
                for (j, x) in row.iter().enumerate() {
                    assert_eq!(matrix.get(i, j).to_bits(), x.to_bits());
                }
            }
        }
    }
}

/// The format's own crate accepts a name that comes twice, and numbers of half a byte.
fn is_stricter(fault: &FormatError) -> bool {
    match fault {
        FormatError::Twice { .. } => true,
        FormatError::UnknownDtype { seen, .. } => seen == "F4",
        _ => false,
    }
}

/// Opens a file here and with the format's own crate: what we accept they accept, as the same tensors, and
/// the other way round except where we are stricter. Says whether we accepted.
fn judge(bytes: &[u8]) -> bool {
    let (ours, theirs) = (File::from_memory(bytes.to_vec()), SafeTensors::deserialize(bytes));
    match (&ours, &theirs) {
        (Ok(ours), Ok(theirs)) => {
            read_all(ours);
            assert_eq!(ours.names().count(), theirs.len());
            for (name, tensor) in theirs.iter() {
                let info = ours.info(name).unwrap();
                assert_eq!((info.dtype, &*info.shape), (tensor.dtype(), tensor.shape()));
                assert_eq!(ours.bytes_of(name), tensor.data());
            }
        }
        (Err(_), Err(_)) => {}
        (Err(Error::Fault { fault, .. }), Ok(_)) => {
            assert!(is_stricter(fault), "{fault}, but they accept it");
        }
        _ => panic!("accepted, but they say {:?}", theirs.err()),
    }
    ours.is_ok()
}

#[test]
fn headers_that_are_none_are_refused() {
    let long = |length: u64, rest: &[u8]| [&length.to_le_bytes(), rest].concat();
    for (bytes, sentence) in [
        (vec![], "the file has 0 bytes, wanted at least 8 for the length of its header"),
        (vec![0; 7], "the file has 7 bytes, wanted at least 8 for the length of its header"),
        (long(0, b"{}"), "the header's length is 0 bytes, wanted 2 to 100000000"),
        (long(1, b"{}"), "the header's length is 1 bytes, wanted 2 to 100000000"),
        (long(100_000_001, b"{}"), "the header's length is 100000001 bytes, wanted 2 to 100000000"),
        (long(u64::MAX, b"{}"), "the header's length is 18446744073709551615 bytes, wanted 2 to 100000000"),
        (
            long(u64::MAX - 7, b"{}"),
            "the header's length is 18446744073709551608 bytes, wanted 2 to 100000000",
        ),
        (long(3, b"{}"), "the header's length is 3 bytes, but only 2 follow in the file"),
        (long(100_000_000, b"{}"), "the header's length is 100000000 bytes, but only 2 follow in the file"),
        (long(4, b"{}\xFF "), "the header is not UTF-8 from its byte 2 on"),
    ] {
        assert!(!judge(&bytes));
        assert_eq!(fault(bytes).to_string(), sentence);
    }
}

#[test]
fn headers_that_are_not_the_formats_json_are_refused() {
    let tensor = r#"{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"#;
    for (header, why) in [
        ("{\"a\"", "EOF while parsing"),
        ("[]", "invalid type: sequence, expected an object of tensors by name"),
        ("{} {", "trailing characters"),
        ("\0\0", "expected value"),
        (
            r#"{"a":3}"#,
            r#""a": invalid type: integer `3`, expected an object of dtype, shape and data_offsets"#,
        ),
        (r#"{"a":{}}"#, r#""a": missing field `dtype`"#),
        (r#"{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,0]}}"#, r#""a": invalid value: integer `-1`"#),
        (r#"{"a":{"dtype":"U8","shape":[0],"data_offsets":[0]}}"#, r#""a": invalid length 1"#),
        (
            r#"{"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#,
            r#""a": duplicate field `dtype`"#,
        ),
        (
            r#"{"a":{"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,0]}}"#,
            r#""a": invalid type: floating point"#,
        ),
        (
            r#"{"__metadata__":{"k":1}}"#,
            r#""__metadata__": invalid type: integer `1`, expected a string at line 1 column 22"#,
        ),
        (
            r#"{"__metadata__":"k"}"#,
            r#""__metadata__": invalid type: string "k", expected an object of strings by key"#,
        ),
        (r#"{"__metadata__":{},"__metadata__":{}}"#, r#""__metadata__": appears twice, wanted once"#),
    ] {
        let bytes = assemble(header, &[]);
        assert!(!judge(&bytes), "{header}");
        let (seen, wanted) =
            (fault(bytes).to_string(), "the header is not the JSON of the safetensors format: ");
        assert!(seen.starts_with(wanted) && seen.contains(why), "{header}: {seen}");
    }
    let deep = format!(r#"{{"a":{}{}}}"#, "[".repeat(1 << 20), "]".repeat(1 << 20));
    assert!(matches!(fault(assemble(&deep, &[])), FormatError::Json { .. }));
    for (header, sentence) in [
        (format!(r#"{{"a":{tensor},"a":{tensor}}}"#), r#"tensor "a" appears twice, wanted once"#),
        (format!(r#"{{"a":{tensor},"\u0061":{tensor}}}"#), r#"tensor "a" appears twice, wanted once"#),
        (
            r#"{"__metadata__":{"k":"1","k":"2"}}"#.to_owned(),
            r#"the metadata's key "k" appears twice, wanted once"#,
        ),
    ] {
        let bytes = assemble(&header, &[]);
        assert!(!judge(&bytes));
        assert_eq!(fault(bytes).to_string(), sentence);
    }
}

#[test]
fn descriptions_that_contradict_themselves_or_the_data_are_refused() {
    let a = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#""a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}"#)
    };
    let b = r#""b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}"#;
    let huge = "[18446744073709551615,2]";
    for (tensors, len, sentence) in [
        (
            a("U8", "[4]", "[4,0]"),
            4,
            r#"tensor "a" begins at byte 4 of the data and ends at 0, wanted an end after the beginning"#,
        ),
        (a("U8", "[4]", "[4,8]"), 4, r#"tensor "a" ends at byte 8 of the data, but the file has only 4"#),
        (a("F32", "[1]", "[0,4]"), 3, r#"tensor "a" ends at byte 4 of the data, but the file has only 3"#),
        (
            a("U8", "[18446744073709551615]", "[0,18446744073709551615]"),
            4,
            r#"tensor "a" ends at byte 18446744073709551615 of the data, but the file has only 4"#,
        ),
        (a("F32", "[1]", "[0,4]"), 5, "the file has 5 bytes of data, but its tensors end at 4"),
        (a("U8", "[0]", "[0,0]"), 1, "the file has 1 bytes of data, but its tensors end at 0"),
        (String::new(), 1, "the file has 1 bytes of data, but its tensors end at 0"),
        (
            a("U8", "[2]", "[1,3]"),
            3,
            r#"tensor "a" begins at byte 1 of the data, wanted 0: the format forbids holes"#,
        ),
        (
            a("U8", "[1]", "[0,1]") + "," + b,
            6,
            r#"tensor "b" begins at byte 2 of the data, wanted 1: the format forbids holes"#,
        ),
        (
            a("U8", "[3]", "[0,3]") + "," + b,
            6,
            r#"tensor "b" begins at byte 2 of the data, but "a" ends at 3: they overlap"#,
        ),
        (
            a("U8", "[6]", "[0,6]") + "," + b,
            6,
            r#"tensor "b" begins at byte 2 of the data, but "a" ends at 6: they overlap"#,
        ),
        (a("F32", "[1]", "[0,8]"), 8, r#"tensor "a" has 8 bytes of data, wanted 4 for shape [1] of F32"#),
        (a("F32", "[]", "[0,0]"), 0, r#"tensor "a" has 0 bytes of data, wanted 4 for shape [] of F32"#),
        (
            a("F32", huge, "[0,4]"),
            4,
            r#"tensor "a" has shape [18446744073709551615, 2] of F32, whose size in bytes overflows"#,
        ),
        (
            a("U8", "[9223372036854775808,2]", "[0,0]"),
            0,
            r#"tensor "a" has shape [9223372036854775808, 2] of U8, whose size in bytes overflows"#,
        ),
        (
            a("F32", "[4611686018427387905]", "[0,4]"),
            4,
            r#"tensor "a" has shape [4611686018427387905] of F32, whose size in bytes overflows"#,
        ),
        (
            a("Q8", "[4]", "[0,4]"),
            4,
            "tensor \"a\" has dtype \"Q8\", wanted one of F64, F32, F16, BF16, F8_E5M2, F8_E4M3, F8_E8M0, \
             F8_E5M2FNUZ, F8_E4M3FNUZ, C64, I64, I32, I16, I8, U64, U32, U16, U8, BOOL",
        ),
    ] {
        let bytes = assemble(&format!("{{{tensors}}}"), &vec![0; len]);
        assert!(!judge(&bytes), "{tensors}");
        assert_eq!(fault(bytes).to_string(), sentence, "{tensors}");
    }
}

/// Kills: a sum of sizes that overflows, which the format's own crate computes.
#[test]
fn sizes_whose_sum_overflows_are_refused() {
    let size = (1usize << 61) - 1;
    let tensors: Vec<_> = (0..9)
        .map(|i| {
            let (begin, end) = ((i * size as u128) as usize, ((i + 1) * size as u128) as usize);
            format!(r#""{i}":{{"dtype":"U8","shape":[{size}],"data_offsets":[{begin},{end}]}}"#)
        })
        .collect();
    for n in 1..=9 {
        let header = format!("{{{}}}", tensors[..n].join(","));
        assert!(matches!(
            fault(assemble(&header, &[0; 4])),
            FormatError::Outside { .. } | FormatError::Reversed { .. }
        ));
    }
}

/// Unusual, and right.
#[test]
fn what_the_format_allows_is_accepted() {
    let a = r#""a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}"#;
    let b = r#""b":{"data_offsets":[0,4],"later":[{}],"shape":[],"dtype":"I32"}"#;
    let none = r#""none":{"dtype":"F64","shape":[3,0],"data_offsets":[4,4]}"#;
    for (header, len) in [
        ("{}".to_owned(), 0),
        ("\n\t {} \r\n".to_owned(), 0),
        (r#"{"__metadata__":{"k":"v"}}"#.to_owned(), 0),
        (format!("{{{a},{b}}}"), 8),
        (format!("{{{none},{a},{b}}}"), 8),
        (format!("{{{a},{b},{none}}}"), 8),
        (r#"{"":{"dtype":"BOOL","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}}"#.to_owned(), 1),
    ] {
        assert!(judge(&assemble(&header, &vec![0xFF; len])), "{header}");
    }
}

/// A valid file with all that a header can hold: two names that one byte could make the same, a scalar, no
/// numbers.
fn seed() -> Vec<u8> {
    let header = r#"{"__metadata__":{"k\n":"v","l":""},"w1":{"dtype":"F32","shape":[2,4],"data_offsets":[0,32]},
        "w2":{"dtype":"F16","shape":[4],"data_offsets":[32,40]},"w3":{"dtype":"U8","shape":[],"data_offsets":[40,41]},
        "w4":{"dtype":"F64","shape":[1,4],"data_offsets":[41,73]},"w5":{"dtype":"BF16","shape":[0],"data_offsets":[73,73]}} "#;
    let data: Vec<u8> = (0..73).map(|i| mix(i) as u8).collect();
    assemble(header, &data)
}

/// Kills: whatever panics, reads outside or is accepted wrongly when a byte is lost or changed.
#[test]
fn broken_files_do_no_harm() {
    let whole = seed();
    assert!(judge(&whole));
    assert!((0..whole.len()).all(|len| !judge(&whole[..len])));
    let (mut state, mut accepted) = (0, 0);
    let mut random = |below: usize| {
        state += 1;
        (mix(state) % below as u64) as usize
    };
    for i in 0..20_000 {
        let mut broken = whole.clone();
        for _ in 0..=i / 8_000 {
            let at = random(if i % 2 == 0 { whole.len() - 73 } else { whole.len() });
            let some = b"0123456789\",:[]{}-.e w"[random(22)];
            broken[at] = [random(256) as u8, broken[at] ^ 1 << random(8), some][random(3)];
        }
        accepted += usize::from(judge(&broken));
    }
    assert!((1_000..10_000).contains(&accepted), "{accepted}: too few or too many to have tried anything");
}

/// Kills: arithmetic on the header's numbers that assumes them sensible.
#[test]
fn numbers_that_lie_do_no_harm() {
    let whole = seed();
    let header = str::from_utf8(&whole[8..whole.len() - 73]).unwrap();
    let runs: Vec<_> = header
        .char_indices()
        .filter(|(i, c)| c.is_ascii_digit() && !header.as_bytes()[i - 1].is_ascii_alphanumeric())
        .map(|(i, _)| (i, i + header[i..].find(|c: char| !c.is_ascii_digit()).unwrap()))
        .collect();
    let lies = ["", "-1", "1e3", "0", "1", "2", "31", "41", "73", "74", "4294967296", "2305843009213693952"];
    let lies = [&lies[..], &["4611686018427387904", "9223372036854775807", "18446744073709551615"]].concat();
    for (first, second) in (0..runs.len()).flat_map(|i| (0..=i).map(move |j| (j, i))) {
        for (lie, other) in lies.iter().flat_map(|lie| lies.iter().map(move |other| (lie, other))) {
            let ((a, b), (c, d)) = (runs[first], runs[second]);
            let between = if first == second { "" } else { &header[b..c] };
            let other = if first == second { "" } else { other };
            let header = [&header[..a], lie, between, other, &header[d..]].concat();
            judge(&assemble(&header, &whole[whole.len() - 73..]));
        }
    }
}

#[test]
fn numbers_of_less_than_a_byte_are_refused() {
    for name in ["F4", "F6_E2M3", "F6_E3M2"] {
        let header = format!(r#"{{"a":{{"dtype":"{name}","shape":[4],"data_offsets":[0,2]}}}}"#);
        assert!(matches!(fault(assemble(&header, &[0; 2])), FormatError::UnknownDtype { .. }));
    }
    assert_eq!(KINDS.split(", ").count(), 19);
}
