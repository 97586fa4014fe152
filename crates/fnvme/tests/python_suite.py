"""The Python face of libfnvme: every call, and what is refused."""

import pathlib
import sys
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "python"))
import fnvme  # noqa: E402

PAGE = 4096


class Areas(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        fnvme.attach("memory:16m")

    @classmethod
    def tearDownClass(cls):
        fnvme.detach()

    def test_what_is_written_is_read(self):
        with fnvme.Area(64 * PAGE) as area:
            for page in range(64):
                area.buffer[page * PAGE : (page + 1) * PAGE] = bytes([page]) * PAGE
                area.write(page * PAGE, PAGE, wait=False)
            area.poll()
            area.flush()
            area.buffer[:] = bytes(64 * PAGE)
            area.read(0, 64 * PAGE)
            for page in range(64):
                self.assertEqual(area.buffer[page * PAGE : (page + 1) * PAGE], bytes([page]) * PAGE)

    def test_a_part_is_a_part(self):
        with fnvme.Area(4 * PAGE, block_size=512) as area:
            area.buffer[:] = b"x" * (4 * PAGE)
            area.write(0, 4 * PAGE)
            area.buffer[:] = bytes(4 * PAGE)
            area.read(PAGE, 512)
            read = bytes(PAGE) + b"x" * 512 + bytes(3 * PAGE - 512)
            self.assertEqual(area.buffer, read)

    def test_a_function_in_the_way(self):
        with fnvme.Area(PAGE, function="aes-xts:" + "01" * 16 + "23" * 16) as area:
            area.buffer[:5] = b"hello"
            area.write(0, PAGE)
            area.buffer[:5] = bytes(5)
            area.read(0, PAGE)
            self.assertEqual(area.buffer[:5], b"hello")
        with self.assertRaisesRegex(fnvme.Error, "rot13"):
            fnvme.Area(PAGE, function="rot13")

    def test_refusals(self):
        with fnvme.Area(4 * PAGE) as area:
            for offset, size in [(-PAGE, PAGE), (0, 5 * PAGE), (4 * PAGE, PAGE), (0, -PAGE)]:
                with self.assertRaises(ValueError):
                    area.read(offset, size)
            with self.assertRaises(fnvme.Error) as refused:
                area.read(0, 100)
            self.assertEqual(refused.exception.code, 5)
            area.read(100, PAGE, wait=False)
            with self.assertRaises(fnvme.Error):
                area.poll()
            area.poll()
            with self.assertRaisesRegex(fnvme.Error, "1 areas of the device have not been freed"):
                fnvme.detach()
        with self.assertRaisesRegex(fnvme.Error, "found a size of 0 bytes, expected 1 or more"):
            fnvme.Area(0)
        with self.assertRaisesRegex(fnvme.Error, "there is a device already"):
            fnvme.attach("memory")

    def test_a_named_area_is_found_again(self):
        with self.assertRaisesRegex(fnvme.Error, "no area of the drive has this name"):
            fnvme.Area(0, name="notes")
        with fnvme.Area(4 * PAGE, name="notes") as area:
            area.buffer[:5] = b"hello"
            area.write(0, PAGE)
            with self.assertRaisesRegex(fnvme.Error, "in use"):
                fnvme.Area(0, name="notes")
        with fnvme.Area(0, name="notes") as area:
            self.assertEqual((area.size, len(area.buffer)), (4 * PAGE, 4 * PAGE))
            area.read(0, PAGE)
            self.assertEqual(area.buffer[:5], b"hello")
        fnvme.remove("notes")
        with self.assertRaises(fnvme.Error) as refused:
            fnvme.remove("notes")
        self.assertEqual(refused.exception.code, 108)

    def test_latencies(self):
        with fnvme.Area(16 * PAGE) as area:
            self.assertEqual(area.latency(fnvme.READS), (0, 0, 0, 0, 0))
            for page in range(16):
                area.read(page * PAGE, PAGE)
            reads = area.latency(fnvme.READS)
            self.assertEqual((reads.requests, reads.failed), (16, 0))
            self.assertTrue(0 < reads.least <= reads.mean <= reads.most, reads)
            most = area.latency_percentile(fnvme.READS, 100)
            self.assertTrue(reads.most * 0.99 <= most <= reads.most * 1.01, (most, reads))
            self.assertEqual(area.latency_percentile(fnvme.WRITES, 50), 0)
            with self.assertRaisesRegex(fnvme.Error, "expected 0 to 100"):
                area.latency_percentile(fnvme.READS, 101)
            area.reset_latency()
            self.assertEqual(area.latency(fnvme.READS).requests, 0)

    def test_a_closed_area(self):
        area = fnvme.Area(PAGE)
        area.close()
        area.close()
        with self.assertRaises(ValueError):
            area.read(0, PAGE)
        with self.assertRaises(ValueError):
            area.buffer[0]

    def test_a_view_keeps_its_memory(self):
        area = fnvme.Area(PAGE)
        view = area.buffer[8:16]
        with self.assertRaises(BufferError):
            area.close()
        view[:] = b"in place"
        self.assertEqual(area.buffer[8:16], b"in place")
        del view
        area.close()

    def test_threads(self):
        failures = []

        def work(number):
            try:
                with fnvme.Area(16 * PAGE) as area:
                    for turn in range(50):
                        byte = bytes([number * 16 + turn % 16])
                        area.buffer[:] = byte * (16 * PAGE)
                        area.write(0, 16 * PAGE)
                        area.buffer[:] = bytes(16 * PAGE)
                        area.read(0, 16 * PAGE)
                        if area.buffer != byte * (16 * PAGE):
                            failures.append(number)
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=[number]) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])


if __name__ == "__main__":
    unittest.main()
