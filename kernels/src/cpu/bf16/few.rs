//! Few rows times a matrix of bf16 that lies by rows or by columns: each of its numbers is read from memory once.
