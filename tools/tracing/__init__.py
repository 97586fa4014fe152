"""From a database server's system calls to a trace that fio can replay."""
