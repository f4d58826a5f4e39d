//! IDX files: bytes in a grid of known size.
//!
//! ```text
//! 00 00 | type of the elements, 08 for bytes | D, number of dimensions
//!       | D sizes, 4 bytes each, highest first | elements
//! ```
//! The header is checked against the file before it is trusted: memory is taken only for bytes that were
//! read, and unpacking stops one byte after the size that the header gives.
use flate2::read::MultiGzDecoder;
use parallel::{Error, Result, bail};
use std::fmt::Display;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use tensor::files;
use tensor::quoted::counted;

/// A file of bytes in `D` dimensions, at most three.
pub(super) struct Idx<const D: usize> {
    pub(super) path: PathBuf,
    pub(super) size: [usize; D],
    pub(super) elements: Vec<u8>,
}

impl<const D: usize> Idx<D> {
    /// Number of bytes before the elements.
    const HEADER: usize = 4 + 4 * D;

    /// Reads `name` from a directory or, if it is missing, `name.gz`.
    pub(super) fn read(dir: &Path, name: &'static str) -> Result<Self> {
        for (path, packed) in [(dir.join(name), false), (dir.join(format!("{name}.gz")), true)] {
            let (file, bytes) = match files::open(&path) {
                Err(files::Error::Missing(_)) => continue,
                opened => opened?,
            };
            return Self::parse(IdxFile::new(path, file, packed, bytes));
        }
        Err(Error::new(format!("{} contains neither {name} nor {name}.gz", dir.display())))
    }

    fn parse(mut source: IdxFile) -> Result<Self> {
        let size = Self::size(&mut source)?;
        let (text, count) = (size.map(|n| n.to_string()).join("×"), size.map(u128::from).iter().product());
        if count == 0 {
            return Err(source.wrong(format_args!("has the size {text}; no dimension may be 0")));
        }
        let mut elements = source.next(u64::try_from(count + 1).unwrap_or(u64::MAX))?;
        let (seen, header) = (elements.len() as u128, Self::HEADER as u128);
        if seen != count {
            let has = match source.packed {
                false => source.has(source.bytes),
                true if seen > count => source.has(format_args!("more than {}", header + count)),
                true => source.has(header + seen),
            };
            let wanted = header + count;
            return Err(source.wrong(format_args!("{has}; the size {text} in its header needs {wanted}")));
        }
        elements.shrink_to_fit();
        Ok(Self { path: source.path, size: size.map(|n| n as usize), elements })
    }

    /// Reads the sizes from the header.
    fn size(source: &mut IdxFile) -> Result<[u32; D]> {
        let head = source.next(Self::HEADER as u64)?;
        let path = source.path.display();
        match head[..] {
            [a, b, ..] if [a, b] != [0, 0] => {
                bail!("{path} begins with the bytes {a:02x} {b:02x}; an IDX file begins with 00 00")
            }
            [_, _, seen, ..] if seen != 8 => {
                bail!("{path} has elements of type 0x{seen:02x}; it must be 0x08, unsigned bytes")
            }
            [_, _, _, seen, ..] if usize::from(seen) != D => {
                bail!("the number of dimensions of {path} is {seen}; it must be {D}")
            }
            _ if head.len() < Self::HEADER => {
                let has = source.has(head.len());
                bail!("{path} {has}; the sizes of {D} dimensions need at least {} bytes", Self::HEADER)
            }
            _ => {}
        }
        let size = |at: usize| [0, 1, 2, 3].map(|byte| head[4 + 4 * at + byte]);
        Ok(std::array::from_fn(|at| u32::from_be_bytes(size(at))))
    }
}

/// A file being read.
struct IdxFile {
    path: PathBuf,
    input: Box<dyn Read>,
    packed: bool,
    bytes: u64,
}

impl IdxFile {
    fn new(path: PathBuf, file: impl Read + 'static, packed: bool, bytes: u64) -> Self {
        let input: Box<dyn Read> = if packed { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
        Self { path, input, packed, bytes }
    }
    /// Reads the next `most` bytes, fewer where the file ends; memory grows as they are read.
    fn next(&mut self, most: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let read = self.input.by_ref().take(most).read_to_end(&mut bytes);
        let unsound = [ErrorKind::InvalidInput, ErrorKind::InvalidData, ErrorKind::UnexpectedEof];
        read.map_err(|why| match why.kind() {
            kind if self.packed && unsound.contains(&kind) => self.wrong(format_args!(
                "has {} that are not a valid gzip file: {why}",
                counted(self.bytes as usize, "byte")
            )),
            _ => files::Error::System { action: "read", path: self.path.clone(), why }.into(),
        })?;
        Ok(bytes)
    }
    /// Returns an error about the file.
    fn wrong(&self, what: impl Display) -> Error {
        Error::new(format!("{} {what}", self.path.display()))
    }
    /// Describes the length of the file, in words.
    fn has(&self, bytes: impl Display) -> String {
        format!("{} {bytes} bytes", if self.packed { "unpacks to" } else { "has" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::io::{self, Cursor, Write};

    /// Reader that fails with this error.
    struct Fails(ErrorKind);
    impl Read for Fails {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::new(self.0, "no luck"))
        }
    }

    /// Parses `input` as the unpacked contents of a packed file.
    fn unpacked<const D: usize>(input: impl Read + 'static) -> std::result::Result<Idx<D>, String> {
        let source = IdxFile { path: "a.gz".into(), input: Box::new(input), packed: true, bytes: 9 };
        Idx::parse(source).map_err(|why| why.to_string())
    }
    fn header(size: &[u32]) -> Cursor<Vec<u8>> {
        let sizes = size.iter().flat_map(|n| n.to_be_bytes());
        Cursor::new([0, 0, 8, size.len() as u8].into_iter().chain(sizes).collect())
    }

    /// Kills: memory allocated for the size in a header, a product that overflows.
    #[test]
    fn a_header_that_lies_costs_nothing() {
        let why = |size: &[u32]| unpacked::<3>(header(size)).err().unwrap();
        let most = u32::MAX;
        assert_eq!(
            why(&[most; 3]),
            format!(
                "a.gz unpacks to 16 bytes; the size {most}×{most}×{most} in its header needs \
                 79228162458924105385300197391"
            )
        );
        assert_eq!(
            why(&[1 << 31, 1 << 31, 4]), // 2⁶⁴ elements
            "a.gz unpacks to 16 bytes; the size 2147483648×2147483648×4 in its header needs 18446744073709551632"
        );
    }

    /// The reader fails if it is read further. Kills: unpacking more than the header's size and one byte.
    #[test]
    fn no_more_is_unpacked_than_was_promised() {
        let one_more = io::repeat(7).take(31).chain(Fails(ErrorKind::Other));
        let why = unpacked::<3>(header(&[2, 3, 5]).chain(one_more)).err();
        let wanted = "a.gz unpacks to more than 46 bytes; the size 2×3×5 in its header needs 46";
        assert_eq!(why.as_deref(), Some(wanted));
        let whole = unpacked::<1>(header(&[300]).chain(io::repeat(7).take(300))).unwrap();
        assert_eq!((whole.size, whole.elements), ([300], vec![7; 300]));
    }

    /// Kills: an index out of range, an early end not noticed, a checksum not verified.
    #[test]
    fn what_is_cut_or_damaged_anywhere_is_refused_or_whole() {
        let read = |bytes: &[u8], packed: bool| {
            let file = Cursor::new(bytes.to_vec());
            Idx::<3>::parse(IdxFile::new("a".into(), file, packed, bytes.len() as u64))
        };
        let elements: Vec<u8> = (0..30).collect();
        let plain = [header(&[2, 3, 5]).into_inner(), elements.clone()].concat();
        let mut packer = GzEncoder::new(Vec::new(), Compression::best());
        packer.write_all(&plain).unwrap();
        for (whole, packed) in [(plain, false), (packer.finish().unwrap(), true)] {
            assert_eq!(read(&whole, packed).unwrap().elements, elements);
            for end in 0..whole.len() {
                assert!(read(&whole[..end], packed).is_err(), "{end} of {} bytes", whole.len());
            }
            for bit in 0..8 * whole.len() {
                let mut damaged = whole.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                match read(&damaged, packed) {
                    // gzip's time and system fields have no effect
                    Ok(idx) if packed => assert_eq!(idx.elements, elements),
                    seen => assert_eq!(seen.is_ok(), !packed && bit >= 8 * 16, "bit {bit}"),
                }
            }
        }
    }

    /// Kills: a read error reported as an invalid gzip file.
    #[test]
    fn a_disk_that_fails_is_said() {
        let why = |kind| unpacked::<1>(header(&[1]).chain(Fails(kind))).err().unwrap();
        assert_eq!(why(ErrorKind::Other), "cannot read a.gz: no luck");
        for kind in [ErrorKind::InvalidData, ErrorKind::InvalidInput, ErrorKind::UnexpectedEof] {
            assert_eq!(why(kind), "a.gz has 9 bytes that are not a valid gzip file: no luck");
        }
    }
}
