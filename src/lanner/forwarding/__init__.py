"""Any call, asked in one place: served here, or by the brokers that lead what it names, and answered as one.

Brokers and proxies stand on it. It knows the table of calls, when a call may be asked again, how a poll is divided over
brokers, and how single messages become batches and batches single messages. It refuses to know what stands below it: a
broker with its own copy of the metadata and links to its peers, or a proxy that holds nothing (`ports`).
"""
