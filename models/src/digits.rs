//! Images of digits, each with its label: the data of a plain classifier.
//!
//! [`Digits::read`] reads the four files of the MNIST database, or any other four in its format.
//! [`Digits::generated`] draws synthetic digits and needs no files. Pixels stay bytes in memory: 0 for paper,
//! 255 for ink.
//!
//! Source: `LeCun`, Cortes, Burges, "The MNIST database of handwritten digits".
use parallel::{Result, Sequence, bail};
use std::path::{Path, PathBuf};
use tensor::mix;

mod drawn;
mod idx;

use idx::Idx;

/// Names of two files: images and their labels.
type Names = (&'static str, &'static str);

/// Training set.
const TRAIN: Names = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte");
/// Test set.
const TEST: Names = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte");

/// Images of one size, each with its label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    images: Vec<u8>,
    /// Label of each image.
    pub labels: Vec<u8>,
    /// Rows of an image, in pixels.
    pub rows: usize,
    /// Columns of an image, in pixels.
    pub cols: usize,
}

impl Set {
    /// Number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }
    /// Returns true if there is no image; never true of a set that was read.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }
    /// Number of pixels of an image: the features of a classifier.
    pub fn pixels(&self) -> usize {
        self.rows * self.cols
    }
    /// Returns the pixels of image `i`, row after row: 0 for paper, 255 for ink.
    ///
    /// # Panics
    /// If there is no image `i`.
    pub fn image(&self, i: usize) -> &[u8] {
        &self.images[i * self.pixels()..][..self.pixels()]
    }
    /// Returns image `i` as an example: its features, and its class.
    ///
    /// # Panics
    /// If there is no image `i`.
    pub fn example(&self, i: usize) -> Sequence {
        Sequence::example(
            self.image(i).iter().map(|&pixel| FEATURES[usize::from(pixel)]).collect(),
            self.labels[i].into(),
        )
    }
    /// Reads two files of a directory; also returns the first one's path.
    fn read(dir: &Path, (images, labels): Names) -> Result<(Self, PathBuf)> {
        let images = Idx::<3>::read(dir, images)?;
        let labels = Idx::<1>::read(dir, labels)?;
        let ([count, rows, cols], [named]) = (images.size, labels.size);
        if count != named {
            let paths = [images.path, labels.path];
            let [images, labels] = paths.each_ref().map(|path| path.display());
            bail!("{images} has {count} images and {labels} has {named} labels; each image needs one label");
        }
        Ok((Self { images: images.elements, labels: labels.elements, rows, cols }, images.path))
    }
}

/// Features of all pixels: MNIST's mean becomes 0, its standard deviation 1. Each step looks up thousands.
const FEATURES: [f32; 256] = {
    let (mut table, mut pixel) = ([0.0; 256], 0);
    while pixel < table.len() {
        table[pixel] = (pixel as f32 / 255.0 - 0.1307) / 0.3081;
        pixel += 1;
    }
    table
};

/// Order of `n` images in an epoch: a permutation by hash, the same under every layout.
pub fn order(seed: u64, epoch: usize, n: usize) -> Vec<usize> {
    let (mut order, hash) = ((0..n).collect::<Vec<_>>(), mix(mix(seed) ^ epoch as u64));
    for end in (1..n).rev() {
        order.swap(end, (mix(hash ^ end as u64) % (end as u64 + 1)) as usize);
    }
    order
}

/// Training and test sets of digits, with images of the same size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digits {
    /// Training set.
    pub train: Set,
    /// Test set.
    pub test: Set,
    /// Number of classes: 1 more than the largest label of either set; 10 for generated digits.
    pub classes: usize,
}

impl Digits {
    /// Reads the four files of MNIST from a directory, each uncompressed or, if that file is missing, as
    /// `.gz`.
    ///
    /// # Errors
    /// If a file is missing or is not a whole IDX file of bytes, if there are no images, or if images and
    /// labels, or training and test images, do not match.
    pub fn read(dir: &Path) -> Result<Self> {
        if !dir.is_dir() {
            let (dir, [(images, labels), (others, judged)]) = (dir.display(), [TRAIN, TEST]);
            bail!(
                "{dir} is not a directory; it must contain {images} and {labels} for training, and \
                 {others} and {judged} for testing, each uncompressed or as .gz"
            );
        }
        let (train, learnt) = Set::read(dir, TRAIN)?;
        let (test, judged) = Set::read(dir, TEST)?;
        let size = |set: &Set| format!("{}×{}", set.rows, set.cols);
        let sizes = [size(&train), size(&test)];
        if sizes[0] != sizes[1] {
            let ([train, test], learnt, judged) = (sizes, learnt.display(), judged.display());
            bail!(
                "{learnt} has images of {train} pixels and {judged} of {test}; both must have the same size"
            );
        }
        let largest = train.labels.iter().chain(&test.labels).max().copied().unwrap_or(0);
        Ok(Self { train, test, classes: 1 + usize::from(largest) })
    }
    /// Draws `train` and `test` digits of 28×28 pixels in ten classes; every ten in a row are ten different
    /// ones. Image `i` of a set is a hash of (seed, set, `i`): the same on every machine, for any number of
    /// images.
    pub fn generated(seed: u64, train: usize, test: usize) -> Self {
        Self { train: drawn::set(seed, 0, train), test: drawn::set(seed, 1, test), classes: drawn::CLASSES }
    }
    /// Number of pixels of an image, in either set.
    pub fn pixels(&self) -> usize {
        self.train.pixels()
    }
    /// Hashes the training set, to identify it.
    pub fn hash(&self) -> u64 {
        let words =
            self.train.images.chunks(8).map(|word| word.iter().fold(0, |all, &b| all << 8 | u64::from(b)));
        let labels = self.train.labels.iter().map(|&label| label.into());
        words.chain(labels).fold(1, |hash, word: u64| mix(hash ^ word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::{fs, io::Write};

    const NAMES: [&str; 4] = [TRAIN.0, TRAIN.1, TEST.0, TEST.1];

    fn idx(size: &[u32], elements: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 0, 8, size.len() as u8];
        bytes.extend(size.iter().flat_map(|n| n.to_be_bytes()));
        [&bytes, elements].concat()
    }
    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut packer = GzEncoder::new(Vec::new(), Compression::best());
        packer.write_all(bytes).unwrap();
        packer.finish().unwrap()
    }
    fn pixels(n: u8) -> Vec<u8> {
        (0..n).map(|at| at.wrapping_mul(97)).collect()
    }
    /// Three training images and two test images of 2×5 pixels.
    fn four() -> [Vec<u8>; 4] {
        let (train, test) = (idx(&[3, 2, 5], &pixels(30)), idx(&[2, 2, 5], &pixels(20)));
        [train, idx(&[3], &[4, 0, 2]), test, idx(&[2], &[6, 2])]
    }
    /// Reads a folder with the four files; the files `with` replace those of the same name.
    fn read(with: &[(&str, &[u8])]) -> std::result::Result<Digits, String> {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in NAMES.iter().zip(&four()) {
            if !with.iter().any(|(other, _)| other.trim_end_matches(".gz") == *name) {
                fs::write(folder.path().join(name), bytes).unwrap();
            }
        }
        for (name, bytes) in with {
            fs::write(folder.path().join(name), bytes).unwrap();
        }
        let why = |why: parallel::Error| why.to_string().replace(folder.path().to_str().unwrap(), "");
        Digits::read(folder.path()).map_err(why)
    }
    fn why(with: &[(&str, &[u8])]) -> String {
        read(with).unwrap_err()
    }
    fn gz(name: &str) -> String {
        format!("{name}.gz")
    }

    /// Kills: an image shown twice or never, an order that is the same in every epoch or for every seed.
    #[test]
    fn every_epoch_shows_every_picture_once_in_another_order() {
        let orders = [(0, 0), (0, 1), (1, 0)].map(|(seed, epoch)| order(seed, epoch, 100));
        for order in &orders {
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..100).collect::<Vec<_>>());
            assert!(order.iter().enumerate().filter(|(at, i)| at == *i).count() < 10);
        }
        assert!(orders[0] != orders[1] && orders[0] != orders[2]);
        assert_eq!((orders[0].clone(), order(3, 4, 0)), (order(0, 0, 100), vec![]));
    }

    /// Kills: pixels in another order or of another scale, another image's label, a hash that ignores any of
    /// these.
    #[test]
    fn pictures_become_examples() {
        let set = Digits::generated(1, 3, 0).train;
        for i in [2, 0] {
            let Sequence { x, targets, documents, .. } = set.example(i);
            assert_eq!((x.len(), targets, documents), (784, [u32::from(set.labels[i])].into(), vec![1]));
            assert!(x.iter().zip(set.image(i)).all(|(x, &pixel)| *x == FEATURES[usize::from(pixel)]));
        }
        assert!((FEATURES[0] + 0.424_213).abs() < 1e-5 && (FEATURES[255] - 2.821_487).abs() < 1e-5);
        let hash = |seed, n| Digits::generated(seed, n, 0).hash();
        assert!(hash(1, 3) == hash(1, 3) && hash(1, 3) != hash(2, 3) && hash(1, 3) != hash(1, 4));
    }

    /// Kills: images that begin a byte early or late, rows exchanged with columns, labels of the other set,
    /// classes counted in one set only.
    #[test]
    fn what_was_written_is_read_image_by_image() {
        let digits = read(&[]).unwrap();
        let Digits { train, test, .. } = &digits;
        assert_eq!((train.len(), train.rows, train.cols, train.pixels()), (3, 2, 5, 10));
        assert_eq!((test.len(), test.rows, test.cols, test.pixels()), (2, 2, 5, 10));
        assert_eq!((digits.classes, digits.pixels(), train.is_empty()), (7, 10, false));
        for i in 0..3 {
            assert_eq!((train.image(i), train.labels[i]), (&pixels(30)[10 * i..10 * i + 10], [4, 0, 2][i]));
        }
        for i in 0..2 {
            assert_eq!((test.image(i), test.labels[i]), (&pixels(20)[10 * i..10 * i + 10], [6, 2][i]));
        }
        let largest = read(&[(TRAIN.1, &idx(&[3], &[255, 0, 0]))]).unwrap();
        assert_eq!(largest.classes, 256);
    }

    /// Kills: a packed file not found, a packed file that hides a plain one, a file packed in several parts
    /// read only to the end of the first.
    #[test]
    fn each_file_may_be_packed() {
        let (digits, files) = (read(&[]).unwrap(), four());
        for which in 0..16 {
            let chosen = (0..4).filter(|file| which >> file & 1 == 1);
            let chosen: Vec<_> = chosen.map(|file| (gz(NAMES[file]), packed(&files[file]))).collect();
            let chosen: Vec<_> = chosen.iter().map(|(name, bytes)| (&name[..], &bytes[..])).collect();
            assert_eq!(read(&chosen).unwrap(), digits);
        }
        let parts = [packed(&files[0][..21]), packed(&files[0][21..])].concat();
        assert_eq!(read(&[(&gz(TRAIN.0), &parts)]).unwrap(), digits);
        assert_eq!(read(&[(&gz(TEST.1), b"no gzip"), (TEST.1, &files[3])]).unwrap(), digits);
    }

    #[test]
    fn what_is_no_directory_of_digits_is_said_in_one_sentence() {
        let folder = tempfile::tempdir().unwrap();
        let none = folder.path().join("none");
        let why = Digits::read(&none).unwrap_err().to_string();
        let wanted = "/none is not a directory; it must contain train-images-idx3-ubyte and \
                      train-labels-idx1-ubyte for training, and t10k-images-idx3-ubyte and \
                      t10k-labels-idx1-ubyte for testing, each uncompressed or as .gz";
        assert_eq!(why.replace(folder.path().to_str().unwrap(), ""), wanted);
        let why = Digits::read(folder.path()).unwrap_err().to_string();
        let wanted = " contains neither train-images-idx3-ubyte nor train-images-idx3-ubyte.gz";
        assert_eq!(why.replace(folder.path().to_str().unwrap(), ""), wanted);
        let why = self::why(&[(TEST.1, b"")]);
        assert_eq!(why, "/t10k-labels-idx1-ubyte is empty (0 bytes)");
    }

    #[test]
    fn what_is_no_idx_file_is_said_in_one_sentence() {
        for (bytes, wanted) in [
            (&b"\x89PNG"[..], " begins with the bytes 89 50; an IDX file begins with 00 00"),
            (&[0, 1, 8, 3], " begins with the bytes 00 01; an IDX file begins with 00 00"),
            (&[0, 0, 13, 3], " has elements of type 0x0d; it must be 0x08, unsigned bytes"),
            (&[0, 0, 8, 3], " has 4 bytes; the sizes of 3 dimensions need at least 16 bytes"),
            (&idx(&[3, 0, 5], &[]), " has the size 3×0×5; no dimension may be 0"),
            (&idx(&[0, 2, 5], &[]), " has the size 0×2×5; no dimension may be 0"),
            (&idx(&[1, 2, 5], &[1; 9]), " has 25 bytes; the size 1×2×5 in its header needs 26"),
            (&idx(&[1, 2, 5], &[1; 11]), " has 27 bytes; the size 1×2×5 in its header needs 26"),
        ] {
            assert_eq!(why(&[(TRAIN.0, bytes)]), format!("/{}{wanted}", TRAIN.0));
            if bytes.len() < 25 {
                assert_eq!(
                    why(&[(&gz(TRAIN.0), &packed(bytes))]),
                    format!("/{}.gz{}", TRAIN.0, wanted.replace("has 4", "unpacks to 4"))
                );
            }
        }
        let packed_as = |bytes: &[u8]| why(&[(&gz(TEST.1), &packed(bytes))]);
        let short = "/t10k-labels-idx1-ubyte.gz unpacks to 9 bytes; the size 2 in its header needs 10";
        assert_eq!(packed_as(&idx(&[2], &[6])), short);
        let long =
            "/t10k-labels-idx1-ubyte.gz unpacks to more than 10 bytes; the size 2 in its header needs 10";
        assert_eq!(packed_as(&idx(&[2], &[6, 2, 0])), long);
        assert_eq!(
            why(&[(TEST.1, &four()[2])]),
            "the number of dimensions of /t10k-labels-idx1-ubyte is 3; it must be 1"
        );
        let labels = "the number of dimensions of /train-images-idx3-ubyte is 1; it must be 3";
        assert_eq!(why(&[(TRAIN.0, &four()[1])]), labels);
    }

    /// Kills: a checksum not verified, bytes after the end ignored.
    #[test]
    fn what_is_no_sound_gzip_file_is_said_in_one_sentence() {
        let whole = packed(&four()[3]);
        let (mut wrong, mut longer) = (whole.clone(), whole.clone());
        *wrong.iter_mut().nth_back(5).unwrap() ^= 1; // in the checksum
        longer.push(0);
        for bytes in [&b"<html>"[..], &wrong, &longer, &whole[..whole.len() - 1]] {
            let why = why(&[(&gz(TEST.1), bytes)]);
            let begins = format!("/{}.gz has {} bytes that are not a valid gzip file: ", TEST.1, bytes.len());
            assert!(why.starts_with(&begins) && why.len() > begins.len(), "{why}");
        }
    }

    #[test]
    fn files_that_do_not_fit_are_said_in_one_sentence() {
        assert_eq!(
            why(&[(TRAIN.1, &idx(&[2], &[4, 0]))]),
            "/train-images-idx3-ubyte has 3 images and /train-labels-idx1-ubyte has 2 labels; each image \
             needs one label"
        );
        assert_eq!(
            why(&[(&gz(TEST.0), &packed(&idx(&[2, 5, 2], &pixels(20))))]),
            "/train-images-idx3-ubyte has images of 2×5 pixels and /t10k-images-idx3-ubyte.gz of 5×2; both must have \
             the same size"
        );
    }

    #[test]
    fn generated_digits_are_two_sets_of_ten_classes() {
        let digits = Digits::generated(1, 30, 20);
        assert_eq!((digits.train.len(), digits.test.len(), digits.classes), (30, 20, 10));
        assert_eq!((digits.train.rows, digits.test.cols, digits.pixels()), (28, 28, 784));
        assert_ne!(digits.train.image(0), digits.test.image(0));
        assert_eq!(digits, Digits::generated(1, 30, 20));
        assert_ne!(digits, Digits::generated(2, 30, 20));
        let few = Digits::generated(1, 1, 0);
        assert_eq!((few.classes, few.train.image(0), few.test.is_empty()), (10, digits.train.image(0), true));
    }
}
