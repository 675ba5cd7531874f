package mempool

// MaxReaders is the greatest number of sessions in the field Readers of a [BufferInfo].
const MaxReaders = 8
