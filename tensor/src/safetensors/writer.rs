//! A file to write: announced whole, written tensor by tensor, then moved to the old file's place.
use super::digest::Outline;
use super::error::{Error, FormatError};
use super::matrix::Matrix;
use crate::dtype::{Dtype, Storable, append, is_float};
use crate::files::{self, Replacement};
use crate::quoted::quoted;
use std::collections::BTreeMap;
use std::io::{BufWriter, IntoInnerError, Write};
use std::path::{Path, PathBuf};

const PIECE: usize = 4096; // elements converted at a time

/// Writes a safetensors file beside its target and moves it to the target's place when it is whole. Dropped
/// unfinished, it leaves nothing behind and the old file untouched.
pub struct Writer {
    path: PathBuf,
    outline: Outline,
    written: usize,
    out: Option<BufWriter<Replacement>>, // none after a failed write: the part that was written is unknown
}

impl Writer {
    /// Begins a file of these tensors (name, dtype, shape), which are stored, and must be written, in this
    /// order. With the widest dtypes first, each tensor is aligned to its element size.
    ///
    /// # Errors
    /// If one file cannot hold the names or sizes, or no file can be created beside `path`.
    pub fn create<N: AsRef<str>>(
        path: &Path,
        metadata: &BTreeMap<String, String>,
        tensors: &[(N, Dtype, Vec<usize>)],
    ) -> Result<Self, Error> {
        let refused = FormatError::of(&path.display().to_string());
        let outline = Outline::new(metadata, tensors).map_err(refused)?;
        let out = Some(BufWriter::new(Replacement::beside(path)?));
        let mut writer = Self { path: path.to_owned(), outline, written: 0, out };
        writer.append(&vec![0; writer.outline.start])?; // the header, once the digests are known
        Ok(writer)
    }
    /// Writes the next tensor from its elements, row-major.
    ///
    /// # Errors
    /// If it is not the next one, has another dtype or number of elements than announced, or the system
    /// refuses. Only the last error is final; the old file is untouched in every case.
    pub fn tensor<T: Storable>(&mut self, name: &str, values: &[T]) -> Result<(), Error> {
        self.check(name, values.len(), T::DTYPE, |wanted| wanted == T::DTYPE).map_err(self.fault())?;
        self.append(bytemuck::cast_slice(values))?;
        self.written += 1;
        Ok(())
    }
    /// Writes the next tensor from a matrix of another file, in the announced dtype: copies its bytes, or
    /// rounds each element to the nearest value, ties to even.
    ///
    /// # Errors
    /// As [`tensor`](Self::tensor), and if an element is too large for this dtype, which is final too.
    pub fn matrix(&mut self, name: &str, matrix: &Matrix<'_>) -> Result<(), Error> {
        let [rows, cols] = [matrix.rows(), matrix.cols()];
        let dtype = self.check(name, rows * cols, matrix.dtype(), is_float).map_err(self.fault())?;
        if dtype == matrix.dtype() {
            self.append(matrix.bytes())?;
            self.written += 1;
            return Ok(());
        }
        self.numbers(name, [rows, cols], |[row, col], to| matrix.row(row, col, to))
    }
    /// Writes the next tensor from these values, each rounded to the announced dtype as in
    /// [`matrix`](Self::matrix). `set` sets part of a row, from `[row, column]` on.
    ///
    /// # Errors
    /// As [`matrix`](Self::matrix).
    pub fn numbers(
        &mut self,
        name: &str,
        [rows, cols]: [usize; 2],
        set: impl Fn([usize; 2], &mut [f64]),
    ) -> Result<(), Error> {
        let dtype = self.check(name, rows * cols, Dtype::F64, is_float).map_err(self.fault())?;
        let mut bytes = Vec::new();
        let mut room = vec![0.0; cols.min(PIECE)];
        for (row, from) in (0..rows).flat_map(|row| (0..cols).step_by(PIECE).map(move |from| (row, from))) {
            bytes.clear();
            let some = &mut room[..PIECE.min(cols - from)];
            set([row, from], some);
            for &mut value in some {
                if !append(value, dtype, &mut bytes) {
                    self.out = None;
                    return Err(self.fault()(FormatError::TooLarge { name: name.to_owned(), value, dtype }));
                }
            }
            self.append(&bytes)?;
        }
        self.written += 1;
        Ok(())
    }
    /// Syncs the file and moves it to its place.
    ///
    /// # Errors
    /// If tensors are missing, an earlier write failed, or the system refuses.
    pub fn finish(mut self) -> Result<(), Error> {
        let Some(out) = self.out.take() else {
            return Err(self.fault()(FormatError::Broken));
        };
        if let Some((next, _)) = self.outline.places.get(self.written) {
            let (written, wanted, next) = (self.written, self.outline.places.len(), next.clone());
            return Err(self.fault()(FormatError::Unfinished { written, wanted, next }));
        }
        let refused = |why: IntoInnerError<_>| files::Error::system("write", &self.path)(why.into_error());
        let mut out = out.into_inner().map_err(refused)?;
        let system = || files::Error::system("read back", &self.path);
        let digests = self.outline.digests(out.file(), 0..self.outline.blocks().len()).map_err(system())?;
        out.begin_with(&self.outline.header(&digests).map_err(self.fault())?)?;
        Ok(out.finish()?)
    }

    /// Returns the announced dtype, if this tensor is the next one, has `seen` elements, and `fits` accepts
    /// the dtype.
    fn check(
        &self,
        name: &str,
        seen: usize,
        kind: Dtype,
        fits: impl Fn(Dtype) -> bool,
    ) -> Result<Dtype, FormatError> {
        let Some((wanted, info)) = self.outline.places.get(self.written).filter(|(wanted, _)| wanted == name)
        else {
            let next = self.outline.places.get(self.written).map(|(next, _)| quoted(next));
            let wanted = next.unwrap_or_else(|| "the end".into());
            return Err(FormatError::Order { seen: name.to_owned(), wanted });
        };
        let name = wanted.clone();
        if !fits(info.dtype) {
            return Err(FormatError::WrongDtype { name, seen: kind, wanted: info.dtype.to_string() });
        }
        let wanted = info.shape.iter().product();
        if seen != wanted {
            return Err(FormatError::Count { name, seen, wanted });
        }
        Ok(info.dtype)
    }
    fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let mut out = self.out.take().ok_or_else(|| self.fault()(FormatError::Broken))?;
        out.write_all(bytes).map_err(files::Error::system("write", &self.path))?;
        self.out = Some(out);
        Ok(())
    }
    fn fault(&self) -> impl Fn(FormatError) -> Error + use<> {
        FormatError::of(&self.path.display().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::safetensors::file::File;
    use ::safetensors::{SafeTensors, serialize, tensor::TensorView};

    type Announced = Vec<(String, Dtype, Vec<usize>)>;
    fn announced(tensors: &[(&str, Dtype, &[usize])]) -> Announced {
        tensors.iter().map(|(name, dtype, shape)| ((*name).to_owned(), *dtype, shape.to_vec())).collect()
    }
    /// A folder, and the path of a file in it that holds "old".
    fn old() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        std::fs::write(&path, b"old").unwrap();
        (folder, path)
    }
    /// Kills, wherever it is called: a file that changes before it is whole, a temporary file left behind.
    fn assert_untouched(folder: &tempfile::TempDir, path: &Path) {
        assert_eq!(std::fs::read(path).unwrap(), b"old");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
    fn why<T>(path: &Path, result: Result<T, Error>) -> String {
        let why = result.err().unwrap().to_string();
        why.strip_prefix(&format!("{}: ", path.display())).unwrap().to_owned()
    }

    #[test]
    fn what_is_written_is_read_by_us_and_by_the_formats_own_crate() {
        let (_folder, path) = old();
        let metadata = BTreeMap::from([("step".to_owned(), "3 \"of\" 4\n".to_owned())]);
        let tensors = announced(&[
            ("n", Dtype::U64, &[2]),
            ("embed.weight", Dtype::F32, &[2, 3]),
            ("ü\"\\", Dtype::F64, &[]),
            ("none", Dtype::F32, &[4, 0]),
        ]);
        let mut writer = Writer::create(&path, &metadata, &tensors).unwrap();
        writer.tensor("n", &[u64::MAX, 1]).unwrap();
        writer.tensor("embed.weight", &[0.0f32, -0.0, f32::NAN, f32::INFINITY, 1e-45, 0.1]).unwrap();
        writer.tensor("ü\"\\", &[0.1f64]).unwrap();
        writer.tensor("none", &[0f32; 0]).unwrap();
        writer.finish().unwrap();

        let ours = File::open(&path).unwrap();
        assert_eq!(ours.metadata(), &metadata);
        assert_eq!(ours.values::<u64>("n", &[2]).unwrap(), [u64::MAX, 1]);
        assert_eq!(ours.values::<f64>("ü\"\\", &[]).unwrap(), [0.1]);
        assert_eq!(ours.matrix("embed.weight", [2, 3]).unwrap().get(1, 2), f64::from(0.1f32));
        let bytes = std::fs::read(&path).unwrap();
        let theirs = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(theirs.len(), tensors.len());
        for (name, dtype, shape) in tensors {
            let tensor = theirs.tensor(&name).unwrap();
            assert_eq!((tensor.dtype().to_string().as_str(), tensor.shape()), (&*dtype.to_string(), &*shape));
            assert_eq!(tensor.data(), ours.bytes_of(&name));
        }
    }

    /// Kills: a header whose length leaves the data anywhere, padding that is not spaces, another order of
    /// keys.
    #[test]
    fn files_equal_those_of_the_formats_own_crate_byte_for_byte() {
        let (_folder, path) = old();
        let values = [1.0f32, 2.0];
        for len in 1..=8 {
            let name = "w".repeat(len);
            let tensors = announced(&[(&name, Dtype::F32, &[2, 1])]);
            let mut writer = Writer::create(&path, &BTreeMap::new(), &tensors).unwrap();
            writer.tensor(&name, &values).unwrap();
            writer.finish().unwrap();
            let view = TensorView::new(Dtype::F32, vec![2, 1], bytemuck::cast_slice(&values)).unwrap();
            let (ours, theirs) = (std::fs::read(&path).unwrap(), serialize([(&name, view)], None).unwrap());
            let header = |bytes: &[u8]| String::from_utf8(bytes[8..bytes.len() - 8].to_vec()).unwrap();
            let text = header(&ours);
            let (before, rest) = text.split_once("\"__metadata__\":{").unwrap();
            let text = before.to_owned() + rest.split_once("},").unwrap().1;
            assert_eq!(text.trim_end_matches(' '), header(&theirs).trim_end_matches(' '));
            assert_eq!(ours[ours.len() - 8..], theirs[theirs.len() - 8..]);
            assert_eq!(File::open(&path).unwrap().begin() % 8, 0);
        }
    }

    /// Kills: notes in another order or elsewhere, tensors in another order than was announced.
    #[test]
    fn a_header_is_these_bytes() {
        let (_folder, path) = old();
        let notes = |some: &[&str]| some.iter().map(|key| ((*key).to_owned(), "\"ü\n".to_owned())).collect();
        let tensors =
            announced(&[("b", Dtype::U64, &[0, 2]), ("\"", Dtype::F64, &[0]), ("a", Dtype::F32, &[0])]);
        let described = r#""b":{"dtype":"U64","shape":[0,2],"data_offsets":[0,0]},"\"":{"dtype":"F64","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}"#;
        let digests = r#""__metadata__":{"digests":"","header_digest":"0000000000000000""#;
        let noted = digests.to_owned() + r#","k":"\"ü\n","l":"\"ü\n"}"#;
        for (some, tensors, wanted) in [
            (&["l", "k"][..], &tensors[..], format!("{{{noted},{described}}}")),
            (&["l", "k"], &[], format!("{{{noted}}}")),
            (&[], &tensors, format!("{{{digests}}},{described}}}")),
            (&[], &[], format!("{{{digests}}}}}")),
        ] {
            let mut writer = Writer::create(&path, &notes(some), tensors).unwrap();
            writer.written = tensors.len();
            writer.finish().unwrap();
            let mut wanted = wanted.into_bytes();
            wanted.resize(wanted.len().next_multiple_of(8), b' ');
            let digest = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&wanted));
            let wanted = String::from_utf8(wanted).unwrap().replacen("0000000000000000", &digest, 1);
            let wanted = [&(wanted.len() as u64).to_le_bytes()[..], wanted.as_bytes()].concat();
            assert_eq!(std::fs::read(&path).unwrap(), wanted);
        }
    }

    #[test]
    fn an_unfinished_file_leaves_the_old_one_untouched() {
        let (folder, path) = old();
        let tensors =
            announced(&[("a", Dtype::F32, &[100_000]), ("b", Dtype::F32, &[1]), ("c", Dtype::F32, &[1])]);
        let begin = || {
            let mut writer = Writer::create(&path, &BTreeMap::new(), &tensors).unwrap();
            writer.tensor("a", &vec![1f32; 100_000]).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"old");
            writer
        };
        drop(begin());
        assert_untouched(&folder, &path);
        assert_eq!(why(&path, begin().finish()), r#"1 of 3 tensors were written, the next is "b""#);
        assert_untouched(&folder, &path);
        let mut broken = begin();
        broken.out = None;
        let message = "cannot write after an earlier write failed";
        assert_eq!(why(&path, broken.tensor("b", &[1f32])), message);
        assert_eq!(why(&path, broken.finish()), message);
        assert_untouched(&folder, &path);
    }

    /// Kills: a refusal that has already written something.
    #[test]
    fn tensors_are_taken_only_as_announced() {
        let (_folder, path) = old();
        let tensors = announced(&[("a", Dtype::F32, &[2]), ("b", Dtype::F64, &[1, 1])]);
        let mut writer = Writer::create(&path, &BTreeMap::new(), &tensors).unwrap();
        assert_eq!(why(&path, writer.tensor("b", &[1f64])), r#"tensor "b" was passed to write, wanted "a""#);
        assert_eq!(
            why(&path, writer.tensor("a", &[1f32; 3])),
            r#"tensor "a" was passed 3 elements to write, wanted 2"#
        );
        assert_eq!(why(&path, writer.tensor("a", &[1f64; 2])), r#"tensor "a" has dtype F64, wanted F32"#);
        writer.tensor("a", &[1f32; 2]).unwrap();
        writer.tensor("b", &[2f64]).unwrap();
        assert_eq!(
            why(&path, writer.tensor("b", &[2f64])),
            r#"tensor "b" was passed to write, wanted the end"#
        );
        writer.finish().unwrap();
        let file = File::open(&path).unwrap();
        assert_eq!(file.values::<f32>("a", &[2]).unwrap(), [1.0; 2]);
        assert_eq!(file.values::<f64>("b", &[1, 1]).unwrap(), [2.0]);
    }

    /// Kills: a row or a piece of one lost or out of place, a kind that is not the one announced, bytes of
    /// the same kind that pass through another.
    #[test]
    fn matrices_of_another_file_are_copied_or_rounded() {
        const COLS: usize = 2 * PIECE + 3;
        let kinds = [Dtype::F64, Dtype::F32, Dtype::F16, Dtype::BF16];
        let value = |i: usize| if i == 7 { f64::NAN } else { (i % 251) as f64 - 120.0 }; // exact in 8 bits
        let (_folder, path) = old();
        let names = ["a", "b", "c", "d"];
        let shape = || vec![3, COLS];
        let announced: Vec<_> = names.iter().zip(kinds).map(|(n, kind)| (*n, kind, shape())).collect();
        let mut writer = Writer::create(&path, &BTreeMap::new(), &[("a", Dtype::F64, shape())]).unwrap();
        writer.tensor("a", &(0..3 * COLS).map(value).collect::<Vec<_>>()).unwrap();
        writer.finish().unwrap();
        let mut from = File::open(&path).unwrap();
        for name in names {
            let mut writer = Writer::create(&path, &BTreeMap::new(), &announced).unwrap();
            for to in names {
                writer.matrix(to, &from.matrix(name, [3, COLS]).unwrap()).unwrap();
            }
            writer.finish().unwrap();
            from = File::open(&path).unwrap();
            for (name, kind) in names.into_iter().zip(kinds) {
                let seen = from.matrix(name, [3, COLS]).unwrap();
                assert_eq!(seen.dtype(), kind);
                for i in 0..3 * COLS {
                    let x = seen.get(i / COLS, i % COLS);
                    assert!(x == value(i) || x.is_nan() && i == 7, "{kind}: number {i} is {x}");
                }
            }
        }
    }

    #[test]
    fn a_number_too_large_for_its_kind_leaves_the_old_file_untouched() {
        let (folder, path) = old();
        let other = folder.path().join("other");
        let mut writer = Writer::create(&other, &BTreeMap::new(), &[("x", Dtype::F64, vec![1, 3])]).unwrap();
        writer.tensor("x", &[1.0, f64::INFINITY, 65520.0]).unwrap();
        writer.finish().unwrap();
        let file = File::open(&other).unwrap();
        std::fs::remove_file(&other).unwrap();
        let x = file.matrix("x", [1, 3]).unwrap();
        let begin = |kind| Writer::create(&path, &BTreeMap::new(), &[("y", kind, vec![3])]).unwrap();
        let mut writer = begin(Dtype::F16);
        let large = r#"tensor "y" has the value 65520, which is too large for F16"#;
        assert_eq!(why(&path, writer.matrix("y", &x)), large);
        assert_eq!(why(&path, writer.finish()), "cannot write after an earlier write failed");
        let mut writer = begin(Dtype::U64);
        assert_eq!(why(&path, writer.matrix("y", &x)), r#"tensor "y" has dtype F64, wanted U64"#);
        let few = file.matrix("x", [1, 3]).map(|x| begin(Dtype::BF16).matrix("z", &x)).unwrap();
        assert_eq!(why(&path, few), r#"tensor "z" was passed to write, wanted "y""#);
        drop(writer);
        assert_untouched(&folder, &path);
        let mut writer = begin(Dtype::BF16);
        writer.matrix("y", &x).unwrap();
        writer.finish().unwrap();
        let y = File::open(&path).unwrap();
        let y = y.matrix("y", [1, 3]).unwrap();
        assert_eq!([y.get(0, 0), y.get(0, 1), y.get(0, 2)], [1.0, f64::INFINITY, 65536.0]);
    }

    #[test]
    fn what_no_file_can_hold_is_refused_before_anything_is_written() {
        let (folder, path) = old();
        let refused = |tensors: &[(&str, Dtype, &[usize])]| {
            why(&path, Writer::create(&path, &BTreeMap::new(), &announced(tensors)))
        };
        let one: &[usize] = &[1];
        assert_eq!(
            refused(&[("a", Dtype::F32, one), ("a", Dtype::F64, one)]),
            r#"tensor "a" appears twice, wanted once"#
        );
        assert_eq!(
            refused(&[("__metadata__", Dtype::F32, one)]),
            r#"a tensor is named "__metadata__", a name that the format reserves"#
        );
        let overflow = r#"tensor "a" has shape [18446744073709551615] of U8, whose size in bytes overflows"#;
        assert_eq!(refused(&[("b", Dtype::U8, one), ("a", Dtype::U8, &[usize::MAX])]), overflow);
        let long = BTreeMap::from([("k".to_owned(), " ".repeat(100_000_000))]);
        assert_eq!(
            why(&path, Writer::create(&path, &long, &announced(&[]))),
            "the header's length is 100000080 bytes, wanted 2 to 100000000"
        );
        assert_untouched(&folder, &path);
        let nowhere = folder.path().join("none/model.safetensors");
        let why = Writer::create(&nowhere, &BTreeMap::new(), &announced(&[])).err().unwrap().to_string();
        assert!(why.starts_with(&format!("cannot write beside {}: ", nowhere.display())), "{why}");
    }
}
